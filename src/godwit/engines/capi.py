"""llama.cpp's C API, loaded once, with its log routed to ours.

llama-cpp-python's annotations describe C types that mypy cannot check: `lib` is Any, here and nowhere else.
"""

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from godwit.errors import ModelLoadError

_log = logging.getLogger("godwit.llamacpp")
_GGML_LEVEL_ERROR = 4


@cache
def lib() -> Any:
    """The llama_cpp module, initialised; ModelLoadError with what to install where it is missing."""
    # Without it a failed assertion in C attaches a debugger first: seconds that a failover waits for.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import llama_cpp
    except ImportError as error:
        raise ModelLoadError(
            f"llama-cpp-python is not installed ({error}): pip install 'godwit[llamacpp]'"
        ) from error
    api: Any = llama_cpp
    callback = api.llama_log_callback(_on_log)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    api.godwit_log_callback = callback  # C keeps the pointer only, so it must live as long as the library
    api.llama_backend_init()
    return api


def _on_log(level: int, text: bytes, _data: object) -> None:
    if level == _GGML_LEVEL_ERROR:
        _log.error("llama.cpp: %s", text.decode(errors="replace").rstrip())


def load_model(path: Path, *, vocab_only: bool, repack: bool = False) -> Any:
    """A llama_model pointer; ModelLoadError where the file is missing or is no GGUF that llama.cpp knows.

    `repack` lets llama.cpp lay quantized weights out anew for AMX and wide vectors: faster, but it ends the
    process with an illegal instruction on virtual machines that announce AMX and do not have it.
    """
    if not path.is_file():
        raise ModelLoadError(f"there is no model file {path}")
    api = lib()
    params = api.llama_model_default_params()
    params.vocab_only = vocab_only
    params.use_extra_bufts = repack
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelLoadError(
            f"llama.cpp cannot load {path}: is it a complete GGUF file of a known architecture?"
        )
    return model

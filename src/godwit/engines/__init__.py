"""Engines: what computes tokens. Each kind is one entry in ENGINES; a heavy library is imported on use."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from godwit.engines.batching import BatchingEngine
from godwit.engines.fake import FakeOptions, FakeRunner, fake_info
from godwit.engines.runner import Runner
from godwit.errors import ConfigError
from godwit.ports import Engine
from godwit.types import CARRIES_ALL, Carries, ModelInfo, ModelName, both, declaring

if TYPE_CHECKING:
    from godwit.engines.llamacpp import LlamaOptions

DEFAULT_PREFILL_CHUNK = 64

Options = Mapping[str, object]
T = TypeVar("T", bound=msgspec.Struct)


class EngineSpec(NamedTuple):
    """One model to serve: its name, its file (None: built in), and how much it may hold.

    Where `cancelled` is set, a load that waits for a server ends early, with ModelLoadError.
    """

    name: ModelName
    path: Path | None
    slots: int
    context_tokens: int
    threads: int
    prefill_chunk: int
    options: Options
    origin: str | None
    cancelled: threading.Event | None


class EngineKind(NamedTuple):
    """How one kind of engine finds a model's file, loads it, and describes it without loading it.

    `carries` is what it carries across a move at best; a description may have less.
    """

    locate: Callable[[str, Path | None], Path | None]
    load: Callable[[EngineSpec], Engine]
    describe: Callable[[EngineSpec], ModelInfo]
    carries: Carries = CARRIES_ALL


def create_engine(
    kind: str,
    *,
    name: str,
    path: str | Path | None = None,
    slots: int = 4,
    context_tokens: int = 4096,
    threads: int = 1,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
    options: Options | None = None,
    origin: str | None = None,
    cancelled: threading.Event | None = None,
) -> Engine:
    """Load a model (seconds) and return its engine, not started; ConfigError or ModelLoadError otherwise.

    An engine that is a server is waited for until `cancelled` is set: then ModelLoadError, and it is stopped.
    """
    spec = _spec(name, path, slots, context_tokens, threads, prefill_chunk, options, origin, cancelled)
    return _kind(kind).load(spec)


def describe(
    kind: str,
    name: str,
    path: str | Path | None = None,
    slots: int = 4,
    context_tokens: int = 4096,
    options: Options | None = None,
    origin: str | None = None,
) -> ModelInfo:
    """What a worker can announce of a model before loading it: `is_loaded` is False, the rest is final."""
    engine = _kind(kind)
    spec = _spec(name, path, slots, context_tokens, 1, DEFAULT_PREFILL_CHUNK, options, origin)
    info = engine.describe(spec)
    return declaring(info, both(engine.carries, info.carries))


def checkpoint_path(kind: str, name: str, path: str | Path | None) -> Path | None:
    """The file that an engine of this kind would read, a built-in model's made now; None where it needs none.

    ConfigError for a name without a file that is not built in.
    """
    return _kind(kind).locate(name, Path(path) if path else None)


def _spec(
    name: str,
    path: str | Path | None,
    slots: int,
    context_tokens: int,
    threads: int,
    prefill_chunk: int,
    options: Options | None,
    origin: str | None,
    cancelled: threading.Event | None = None,
) -> EngineSpec:
    counts = {
        "slots": slots,
        "context_tokens": context_tokens,
        "threads": threads,
        "prefill_chunk": prefill_chunk,
    }
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"{key} must be at least 1, not {value}")
    return EngineSpec(
        ModelName(name),
        Path(path) if path else None,
        slots,
        context_tokens,
        threads,
        prefill_chunk,
        options or {},
        origin,
        cancelled,
    )


def _kind(kind: str) -> EngineKind:
    if kind not in ENGINES:
        raise ConfigError(f"engine {kind!r} does not exist: use one of {', '.join(sorted(ENGINES))}")
    return ENGINES[kind]


def _options(spec: EngineSpec, wanted: type[T]) -> T:
    try:
        return msgspec.convert(dict(spec.options), wanted)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(wanted))
        raise ConfigError(f"engine options of {spec.name}: {error}; known options: {known}") from error


def _load_fake(spec: EngineSpec) -> Engine:
    options = _options(spec, FakeOptions)
    info = fake_info(spec.name, spec.slots, spec.context_tokens, options, is_loaded=True, path=spec.path)
    time.sleep(options.load_s)  # what a load is: a blocking call in the loader's own thread
    return _batching(spec, FakeRunner(info, spec.slots, options))


def _describe_fake(spec: EngineSpec) -> ModelInfo:
    options = _options(spec, FakeOptions)
    return fake_info(spec.name, spec.slots, spec.context_tokens, options, is_loaded=False, path=spec.path)


def _load_llamacpp(spec: EngineSpec) -> Engine:
    from godwit.engines.checkpoints import locate
    from godwit.engines.llamacpp import LlamaOptions, LlamaRunner

    runner = LlamaRunner(
        locate(spec.name, spec.path),
        spec.name,
        slots=spec.slots,
        context_tokens=spec.context_tokens,
        threads=spec.threads,
        prefill_chunk=spec.prefill_chunk,
        options=_options(spec, LlamaOptions),
        origin=spec.origin,
    )
    return _batching(spec, runner)


def _batching(spec: EngineSpec, runner: Runner) -> Engine:
    return BatchingEngine(runner, prefill_chunk_tokens=spec.prefill_chunk)


def _describe_llamacpp(spec: EngineSpec) -> ModelInfo:
    from godwit.engines.llamacpp import LlamaOptions

    return _describe_gguf(spec, _options(spec, LlamaOptions))


def _describe_gguf(spec: EngineSpec, options: "LlamaOptions") -> ModelInfo:
    from godwit.engines.checkpoints import locate
    from godwit.engines.llamacpp import describe_file

    path = locate(spec.name, spec.path)
    return describe_file(path, spec.name, spec.slots, spec.context_tokens, options, spec.origin)


def _locate_llamacpp(name: str, path: Path | None) -> Path:
    from godwit.engines.checkpoints import locate

    return locate(name, path)


def _load_llama_server(spec: EngineSpec) -> Engine:
    from godwit.engines.checkpoints import locate
    from godwit.engines.llamaserver import LlamaServer, LlamaServerOptions
    from godwit.engines.served import ServedEngine

    server = LlamaServer(
        locate(spec.name, spec.path),
        spec.name,
        slots=spec.slots,
        context_tokens=spec.context_tokens,
        threads=spec.threads,
        options=_options(spec, LlamaServerOptions),
        origin=spec.origin,
        cancelled=spec.cancelled,
    )
    return ServedEngine(server)


def _describe_llama_server(spec: EngineSpec) -> ModelInfo:
    from godwit.engines.llamacpp import LlamaOptions
    from godwit.engines.llamaserver import LlamaServerOptions

    return _describe_gguf(spec, LlamaOptions(_options(spec, LlamaServerOptions).chat_template))


def _load_vllm(spec: EngineSpec) -> Engine:
    from godwit.engines.hf import find_folder
    from godwit.engines.served import ServedEngine
    from godwit.engines.vllm import VllmOptions, VllmServer

    options = _options(spec, VllmOptions)
    folder = find_folder(spec.name, spec.path, options.python)
    server = VllmServer(
        folder,
        spec.name,
        slots=spec.slots,
        context_tokens=spec.context_tokens,
        options=options,
        origin=spec.origin,
        cancelled=spec.cancelled,
    )
    return ServedEngine(server, server.kv)


def _describe_vllm(spec: EngineSpec) -> ModelInfo:
    from godwit.engines.hf import HfFolder, find_folder
    from godwit.engines.vllm import VllmOptions, vllm_info

    options = _options(spec, VllmOptions)
    folder = HfFolder(find_folder(spec.name, spec.path, options.python))
    return vllm_info(
        folder,
        spec.name,
        spec.slots,
        spec.context_tokens,
        options,
        is_loaded=False,
        origin=spec.origin,
    )


ENGINES: dict[str, EngineKind] = {
    "fake": EngineKind(lambda _, path: path, _load_fake, _describe_fake),
    "llamacpp": EngineKind(_locate_llamacpp, _load_llamacpp, _describe_llamacpp),
    "llama-server": EngineKind(
        _locate_llamacpp,
        _load_llama_server,
        _describe_llama_server,
        carries=Carries(grammar=False, kv=False),
    ),
    "vllm": EngineKind(
        lambda _name, _path: None,
        _load_vllm,
        _describe_vllm,
        carries=Carries(seed=False, penalties=False, grammar=False),
    ),
}

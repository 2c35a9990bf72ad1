"""The models loaded on this worker: loaded in the background, counted by the byte, evicted when idle."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from godwit.errors import GodwitError, ModelLoadError
from godwit.ports import Engine, EngineEvent
from godwit.types import ModelInfo, ModelName

CLOSE_S = 30.0
Done = Callable[[Engine | GodwitError], None]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that this worker can load: what it is, and the blocking call that loads it."""

    info: ModelInfo
    load: Callable[[], Engine]


class LocalInstances:
    """Implements `ports.Instances`. `on_step` and `on_change` are called in the event loop."""

    def __init__(
        self,
        checkpoints: Iterable[Checkpoint],
        device_bytes: int,
        on_step: Callable[[Sequence[EngineEvent]], None],
        on_change: Callable[[ModelInfo, str | None], None],
    ) -> None:
        self._checkpoints = {checkpoint.info.name: checkpoint for checkpoint in checkpoints}
        self._device_bytes = device_bytes
        self._on_step = on_step
        self._on_change = on_change
        self._engines: dict[ModelName, Engine] = {}  # least recently used first
        self._loading: dict[ModelName, list[Done]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        """Every model that can be served here, with its state now."""
        return tuple(
            replace(c.info, is_loaded=c.info.name in self._engines) for c in self._checkpoints.values()
        )

    @property
    def engines(self) -> Sequence[Engine]:
        return list(self._engines.values())

    def get(self, model: ModelName) -> Engine | None:
        """The engine that serves `model`, None where it is not loaded."""
        engine = self._engines.pop(model, None)
        if engine is not None:
            self._engines[model] = engine
        return engine

    def load(self, model: ModelName, done: Done) -> None:
        """Load `model`, evicting idle models if its bytes need it; concurrent loads of one model are one."""
        loop = asyncio.get_running_loop()
        if (engine := self.get(model)) is not None:
            loop.call_soon(done, engine)
            return
        if model in self._loading:
            self._loading[model].append(done)
            return
        try:
            self._make_room(model)
        except GodwitError as error:
            if model in self._checkpoints:
                self._on_change(self._info(model), error.message)
            loop.call_soon(done, error)
            return
        self._loading[model] = [done]
        task = asyncio.create_task(self._load(self._checkpoints[model]))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def unload(self, model: ModelName) -> None:
        """Drop the instance if it serves nothing; harmless where it is not loaded."""
        engine = self._engines.get(model)
        if engine is not None and engine.free_slots == engine.slots:
            self._drop(model)

    def drop_broken(self, model: ModelName, error: str) -> None:
        """Drop an instance whose engine has failed, and say so."""
        if model in self._engines:
            _log.error("engine failed", model=model, error=error)
            self._drop(model)

    async def close(self) -> None:
        """Stop all engines; returns when their threads have ended."""
        while self._loads or self._engines or self._closing:
            for model in list(self._engines):
                self._drop(model)
            await asyncio.wait(self._loads | self._closing)

    def _info(self, model: ModelName) -> ModelInfo:
        return replace(self._checkpoints[model].info, is_loaded=model in self._engines)

    def _used_bytes(self) -> int:
        names = {*self._engines, *self._loading}
        return sum(self._checkpoints[name].info.device_bytes for name in names)

    def _make_room(self, model: ModelName) -> None:
        if model not in self._checkpoints:
            known = ", ".join(sorted(self._checkpoints)) or "none"
            raise ModelLoadError(f"this worker has no model {model!r}; it has: {known}")
        need = self._checkpoints[model].info.device_bytes
        idle = [name for name, engine in self._engines.items() if engine.free_slots == engine.slots]
        while self._used_bytes() + need > self._device_bytes and idle:
            self._drop(idle.pop(0))
        if self._used_bytes() + need > self._device_bytes:
            raise ModelLoadError(
                f"{model} needs {need / 1e6:.0f} MB, and {self._used_bytes() / 1e6:.0f} of "
                f"{self._device_bytes / 1e6:.0f} MB are in use: lower worker.slots or worker.context_tokens, "
                "or raise worker.device_bytes"
            )

    async def _load(self, checkpoint: Checkpoint) -> None:
        model = checkpoint.info.name
        loop = asyncio.get_running_loop()
        result: Engine | GodwitError
        try:
            await self._wait_for_memory()
            result = await asyncio.to_thread(checkpoint.load)
        except GodwitError as error:
            result = error
        except Exception as error:  # a file's content decides what fails here; whoever waits must hear of it
            _log.exception("load failed", model=model)
            result = ModelLoadError(f"{model} cannot be loaded: {error}")
        waiting = self._loading.pop(model)
        if isinstance(result, GodwitError):
            self._on_change(self._info(model), result.message)
        else:

            def on_step(events: Sequence[EngineEvent]) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._on_step, events)

            result.start(on_step)
            self._engines[model] = result
            _log.info("loaded", model=model)
            self._on_change(self._info(model), None)
        for done in waiting:
            done(result)

    async def _wait_for_memory(self) -> None:
        """What closes counts as free from the start, but a load that relies on it must come after its end."""
        if not self._closing:
            return
        _, late = await asyncio.wait(self._closing, timeout=CLOSE_S)
        if late:
            raise ModelLoadError(f"an engine that was closed holds its memory still, {CLOSE_S:.0f} s after")

    def _drop(self, model: ModelName) -> None:
        engine = self._engines.pop(model)
        _log.info("unloaded", model=model)
        task = asyncio.create_task(asyncio.to_thread(engine.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._on_change(self._info(model), None)

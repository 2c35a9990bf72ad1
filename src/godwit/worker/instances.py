"""The models loaded on this worker: loaded in the background, counted by the byte, unloaded when told to.

The scheduler decides what is unloaded for what. Here it is only made sure that no memory is promised twice.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence

import structlog
from msgspec.structs import replace

from godwit.errors import ConflictError, GodwitError, ModelLoadError
from godwit.ports import Engine, EngineEvent
from godwit.protocol.model_messages import STAYS
from godwit.types import LoadRecord, ModelInfo, ModelName, Tier
from godwit.worker.models import LocalModel
from godwit.worker.progress import LoadWatch
from godwit.worker.store import CheckpointStore, StoredFile

CLOSE_S = 30.0
LOOK_EVERY_S = 0.01
Done = Callable[[Engine | GodwitError], None]
OnChange = Callable[[ModelInfo, str | None, LoadRecord | None], None]
OnProgress = Callable[[ModelName, Tier, int, int], None]
_log = structlog.get_logger(__name__)


class LocalInstances:
    """Implements `ports.Instances`. `on_step`, `on_change` and `on_progress` are called in the event loop."""

    def __init__(
        self,
        models: Iterable[LocalModel],
        store: CheckpointStore,
        device_bytes: int,
        on_step: Callable[[Sequence[EngineEvent]], None],
        on_change: OnChange,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        self._models = {model.info.name: model for model in models}
        self._store = store
        self._device_bytes = device_bytes
        self._on_step = on_step
        self._on_change = on_change
        self._on_progress = on_progress
        self._engines: dict[ModelName, Engine] = {}
        self._loading: dict[ModelName, list[Done]] = {}
        self._loads: dict[ModelName, asyncio.Task[None]] = {}
        self._leaving: dict[ModelName, asyncio.Task[None]] = {}
        self._closing: dict[asyncio.Task[None], int] = {}
        store.on_tier = self._tier_changed

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        """Every model that can be served here, with its state now."""
        return tuple(self.info(name) for name in self._models)

    @property
    def loading(self) -> tuple[ModelName, ...]:
        """The models of which a load is under way."""
        return tuple(self._loading)

    @property
    def engines(self) -> Sequence[Engine]:
        return list(self._engines.values())

    def has(self, model: ModelName) -> bool:
        """Whether this worker can serve `model`."""
        return model in self._models

    def info(self, model: ModelName) -> ModelInfo:
        """A model of this worker, with its state now."""
        one = self._models[model]
        info = replace(one.info, is_loaded=model in self._engines)
        if one.file is None:
            return info
        return replace(info, tier=one.file.tier, checkpoint_bytes=one.file.num_bytes or info.checkpoint_bytes)

    def get(self, model: ModelName) -> Engine | None:
        """The engine that serves `model`, None where it is not loaded, or about to be unloaded."""
        return None if model in self._leaving else self._engines.get(model)

    def load(self, model: ModelName, done: Done) -> None:
        """Load `model`, or keep it if its unload is pending; concurrent loads of one model are one."""
        loop = asyncio.get_running_loop()
        if (leaving := self._leaving.pop(model, None)) is not None:
            leaving.cancel()
            _log.info("kept", model=model)
        if (engine := self._engines.get(model)) is not None:
            self._on_change(self.info(model), None, STAYS)
            loop.call_soon(done, engine)
            return
        if model in self._loading:
            self._loading[model].append(done)
            return
        try:
            self._check_room(model)
        except GodwitError as error:
            if model in self._models:
                self._on_change(self.info(model), error.message, None)
            loop.call_soon(done, error)
            return
        self._loading[model] = [done]
        self._loads[model] = asyncio.create_task(self._load(self._models[model]))

    def unload(self, model: ModelName) -> None:
        """Drop the instance as soon as it serves nothing; it takes nothing new until then. End a load."""
        if model in self._loading:
            self._cut(model, f"{model} was unloaded before it was loaded")
            return
        engine = self._engines.get(model)
        if engine is None or model in self._leaving:
            return
        if _is_idle(engine):
            self._drop(model)
        else:
            self._leaving[model] = asyncio.create_task(self._drop_when_idle(model, engine))

    def drop_broken(self, model: ModelName, error: str) -> None:
        """Drop an instance whose engine has failed, and say so."""
        if model in self._engines:
            _log.error("engine failed", model=model, error=error)
            self._drop(model)

    def add(self, model: LocalModel) -> None:
        """Serve one more model, whose name is new."""
        self._models[model.info.name] = model

    async def remove(self, model: ModelName) -> None:
        """Forget a model, unloading it first; ConflictError where it is being loaded or serves requests."""
        engine = self._engines.get(model)
        if model in self._loading:
            raise ConflictError(f"{model} is being loaded: remove it once that is over")
        if engine is not None and not _is_idle(engine):
            raise ConflictError(f"{model} serves requests: let them end, or move them away, then remove it")
        if engine is not None:
            self._drop(model)
        file = self._models.pop(model).file
        if file is not None and not self._models_of(file):
            await self._store.forget(file)

    async def close(self) -> None:
        """Stop all loads and engines; returns when their threads have ended."""
        for model in self.loading:
            self._cut(model, "the worker is stopping")
        for task in self._leaving.values():
            task.cancel()
        while self._engines or self._closing:
            for model in list(self._engines):
                self._drop(model)
            await asyncio.wait(set(self._closing))
        await self._store.close()

    # --- memory ---------------------------------------------------------------------------------------------

    def _bytes_of(self, models: Iterable[ModelName]) -> int:
        return sum(self._models[model].info.device_bytes for model in models)

    def _check_room(self, model: ModelName) -> None:
        """Whether it fits, once what is about to be unloaded is gone."""
        if model not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise ModelLoadError(f"this worker has no model {model!r}; it has: {known}")
        stays = {*self._engines, *self._loading} - {*self._leaving, model}
        need, used = self._bytes_of([model]), self._bytes_of(stays)
        if used + need > self._device_bytes:
            raise ModelLoadError(
                f"{model} needs {need / 1e6:.0f} MB, and {used / 1e6:.0f} of "
                f"{self._device_bytes / 1e6:.0f} MB are in use: lower worker.slots or worker.context_tokens, "
                "or raise worker.device_bytes"
            )

    async def _wait_for_memory(self, model: ModelName) -> None:
        """What is being unloaded counts as free from the start, but a load must come after its end."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CLOSE_S
        while self._held_bytes() > self._device_bytes:
            going = {*self._leaving.values(), *self._closing}
            self._check_room(model)
            await asyncio.wait(going, timeout=end_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if loop.time() >= end_s:
                raise ModelLoadError(
                    f"an engine that was closed holds its memory still, {CLOSE_S:.0f} s after"
                )

    def _held_bytes(self) -> int:
        return self._bytes_of({*self._engines, *self._loading}) + sum(self._closing.values())

    # --- loading and unloading ------------------------------------------------------------------------------

    async def _load(self, model: LocalModel) -> None:
        name = model.info.name
        result: Engine | GodwitError
        record: LoadRecord | None = None
        try:
            await self._wait_for_memory(name)
            result, record = await self._bring(model)
        except GodwitError as error:
            result = error
        except Exception as error:  # a file's content decides what fails here; whoever waits must hear of it
            _log.exception("load failed", model=name)
            result = ModelLoadError(f"{name} cannot be loaded: {error}")
        waiting = self._loading.pop(name)
        del self._loads[name]
        if isinstance(result, GodwitError):
            self._on_change(self.info(name), result.message, None)
        else:
            self._start(name, result)
            _log.info("loaded", model=name)
            self._on_change(self.info(name), None, record)
        for done in waiting:
            done(result)

    def _cut(self, model: ModelName, reason: str) -> None:
        """End a load. Whoever waits is told now; the memory is held until nothing is left of it."""
        task, waiting = self._loads.pop(model), self._loading.pop(model)
        task.cancel()
        self._closing[task] = self._bytes_of([model])
        task.add_done_callback(self._closing.pop)
        _log.info("load cut short", model=model, reason=reason)
        self._on_change(self.info(model), reason, None)
        for done in waiting:
            done(ModelLoadError(reason))

    async def _bring(self, model: LocalModel) -> tuple[Engine, LoadRecord]:
        name = model.info.name
        watch = LoadWatch(lambda *moved: self._on_progress(name, *moved))
        if model.file is None:
            watch.begins(model.info.tier)
            return await _create(model), watch.record(model.info.checkpoint_bytes)
        async with self._store.to_device(model.file, watch):
            engine = await _create(model)
        return engine, watch.record(model.file.num_bytes)

    def _start(self, model: ModelName, engine: Engine) -> None:
        loop = asyncio.get_running_loop()

        def on_step(events: Sequence[EngineEvent]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._on_step, events)

        engine.start(on_step)
        self._engines[model] = engine

    async def _drop_when_idle(self, model: ModelName, engine: Engine) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                while not _is_idle(engine):  # noqa: ASYNC110 -- an engine says nothing when a slot is freed
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            _log.warning("stays loaded: it still serves requests", model=model, after_s=CLOSE_S)
            del self._leaving[model]
            self._on_change(self.info(model), None, STAYS)
        else:
            self._drop(model)

    def _drop(self, model: ModelName) -> None:
        engine = self._engines.pop(model)
        if (leaving := self._leaving.pop(model, None)) is not asyncio.current_task() and leaving is not None:
            leaving.cancel()
        _log.info("unloaded", model=model)
        task = asyncio.create_task(self._close(engine, self._models[model].file))
        self._closing[task] = self._bytes_of([model])
        task.add_done_callback(self._closing.pop)
        self._on_change(self.info(model), None, None)

    async def _close(self, engine: Engine, file: StoredFile | None) -> None:
        await asyncio.to_thread(engine.close)
        if file is not None:
            await self._store.left_device(file)

    def _models_of(self, file: StoredFile) -> list[ModelName]:
        return [name for name, model in self._models.items() if model.file is file]

    def _tier_changed(self, file: StoredFile) -> None:
        """Tell the head, but of a model that is being loaded only when that is over: it would look over."""
        for name in self._models_of(file):
            if name not in self._loading:
                self._on_change(self.info(name), None, None)


def _is_idle(engine: Engine) -> bool:
    return engine.free_slots == engine.slots


async def _create(model: LocalModel) -> Engine:
    """The engine, made in a thread; where the load is cancelled, that ends early, or it is closed again."""
    cancelled = threading.Event()
    making = asyncio.ensure_future(asyncio.to_thread(model.create, cancelled))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([making])
        if making.exception() is None:
            await asyncio.to_thread(making.result().close)
        raise

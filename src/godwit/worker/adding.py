"""Models that the head adds and removes while the worker runs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from godwit.config import ModelSettings
from godwit.errors import GodwitError
from godwit.protocol.message import Message
from godwit.protocol.model_messages import (
    AddModel,
    ModelChanged,
    ModelRefused,
    ModelRemoved,
    RemoveModel,
)
from godwit.types import ModelName
from godwit.worker.instances import LocalInstances
from godwit.worker.models import LocalModel

_log = structlog.get_logger(__name__)


class AddedModels:
    """Answers AddModel and RemoveModel; `configured` are the models that the worker has by itself."""

    def __init__(
        self,
        configured: Iterable[ModelSettings],
        describe: Callable[[ModelSettings], Awaitable[LocalModel]],
        instances: LocalInstances,
        send: Callable[[Message], None],
    ) -> None:
        self._configured = {ModelName(model.name): model for model in configured}
        self._added: dict[ModelName, ModelSettings] = {}
        self._tasks: dict[ModelName, asyncio.Task[None]] = {}
        self._describe = describe
        self._instances = instances
        self._send = send

    def add(self, order: AddModel) -> None:
        """Describe a model in the background and serve it from then on; the same one again is harmless."""
        name = ModelName(order.model.name)
        known = self._configured.get(name) or self._added.get(name)
        if known is not None and known != order.model:
            self._refuse(name, f"another model is called {name} here: remove that one, or take another name")
        elif name in self._tasks:
            # It is being added, and the answer to that is one to this; or removed, and this came too early.
            if self._instances.has(name):
                self._refuse(name, f"{name} is being removed: add it once that is over")
        elif known is not None:
            self._send(ModelChanged(self._instances.info(name)))
        else:
            self._added[name] = order.model
            self._begin(name, self._add(name, order.model))

    def remove(self, order: RemoveModel) -> None:
        """Forget a model that was added and is idle."""
        name = order.model
        if name in self._configured:
            self._refuse(name, f"{name} is in this worker's settings: remove it there and restart the worker")
        elif name in self._tasks:
            self._refuse(name, f"{name} is being added or removed: try again once that is over")
        elif name not in self._added:
            self._send(ModelRemoved(name))
        else:
            self._begin(name, self._remove(name))

    async def close(self) -> None:
        """Stop what is under way; returns when it has ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _begin(self, name: ModelName, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: ModelName, task: asyncio.Task[None]) -> None:
        """Whatever failed, and a file's content decides what can: the head must hear of it."""
        del self._tasks[name]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, GodwitError):
            _log.error("adding or removing failed", model=name, exc_info=error)
        if not self._instances.has(name):
            self._added.pop(name, None)
        self._refuse(name, error.message if isinstance(error, GodwitError) else f"{name}: {error}")

    async def _add(self, name: ModelName, model: ModelSettings) -> None:
        self._instances.add(await self._describe(model))
        _log.info("added", model=name)
        self._send(ModelChanged(self._instances.info(name)))

    async def _remove(self, name: ModelName) -> None:
        await self._instances.remove(name)
        del self._added[name]
        self._send(ModelRemoved(name))

    def _refuse(self, name: ModelName, reason: str) -> None:
        self._send(ModelRefused(name, reason))

"""Models that the head adds and removes, in virtual time: as `worker/adding.py`, without files."""

from collections.abc import Callable, Mapping

from godwit.protocol.message import Message
from godwit.protocol.model_messages import AddModel, ModelChanged, ModelRefused, ModelRemoved, RemoveModel
from godwit.sim.instances import ModelledInstances
from godwit.sim.loop import Loop
from godwit.sim.spec import ModelSpec
from godwit.types import ModelInfo, ModelName

DESCRIBE_S = 0.05
"""What looking into a new model's file, or deleting one, takes."""


class SimAddedModels:
    """Answers AddModel and RemoveModel; `specs` are the models whose files could be had."""

    def __init__(
        self,
        specs: Mapping[ModelName, ModelSpec],
        describe: Callable[[ModelSpec], ModelInfo],
        instances: ModelledInstances,
        loop: Loop,
        send: Callable[[Message], None],
    ) -> None:
        self._specs = specs
        self._describe = describe
        self._instances = instances
        self._loop = loop
        self._send = send
        self._configured = {info.name for info in instances.infos}
        self._added: set[ModelName] = set()
        self._busy: set[ModelName] = set()

    def add(self, order: AddModel) -> None:
        """Serve a model from soon on; the same one again is harmless."""
        name = ModelName(order.model.name)
        if name in self._busy:
            # It is being added, and the answer to that is one to this; or removed, and this came too early.
            if self._instances.has(name):
                self._send(ModelRefused(name, "it is being removed"))
        elif name in self._configured or name in self._added:
            self._send(ModelChanged(self._instances.info(name)))
        elif name not in self._specs:
            self._send(ModelRefused(name, "no such file"))
        else:
            self._added.add(name)
            self._busy.add(name)
            self._loop.after(DESCRIBE_S, lambda: self._add(name))

    def remove(self, order: RemoveModel) -> None:
        """Forget a model that was added and is idle."""
        name = order.model
        if name in self._configured:
            self._send(ModelRefused(name, "it is in this worker's settings"))
        elif name in self._busy:
            self._send(ModelRefused(name, "it is being added or removed"))
        elif name not in self._added:
            self._send(ModelRemoved(name))
        elif (problem := self._instances.remove(name)) is not None:
            self._send(ModelRefused(name, problem))
        else:
            self._busy.add(name)
            self._loop.after(DESCRIBE_S, lambda: self._removed(name))

    def _add(self, name: ModelName) -> None:
        self._busy.discard(name)
        self._instances.add(self._describe(self._specs[name]))
        self._send(ModelChanged(self._instances.info(name)))

    def _removed(self, name: ModelName) -> None:
        self._busy.discard(name)
        self._added.discard(name)
        self._send(ModelRemoved(name))

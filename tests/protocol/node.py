"""One worker in the world: the real WorkerRequests, step engines, and loads that the test ends."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from godwit.errors import GodwitError, ModelLoadError
from godwit.ports import Clock, Engine, Failed
from godwit.protocol.message import Message
from godwit.protocol.messages import Hello, KvPart, PeerMessage
from godwit.protocol.model_messages import ModelChanged
from godwit.protocol.worker import WorkerRequests
from godwit.types import ModelInfo, ModelName, WorkerId
from tests.protocol.engine import StepEngine

Done = Callable[[Engine | GodwitError], None]


@dataclass
class StepInstances:
    """Implements `ports.Instances`; `finish_load` is the test's."""

    infos: dict[ModelName, ModelInfo]
    slots: int
    on_change: Callable[[ModelInfo, str | None], None]
    engines: dict[ModelName, StepEngine] = field(default_factory=dict)
    loading: dict[ModelName, list[Done]] = field(default_factory=dict)
    leaving: set[ModelName] = field(default_factory=set)

    def get(self, model: ModelName) -> StepEngine | None:
        return None if model in self.leaving else self.engines.get(model)

    def load(self, model: ModelName, done: Done) -> None:
        self.leaving.discard(model)
        self.loading.setdefault(model, []).append(done)

    def unload(self, model: ModelName) -> None:
        if model in self.engines:
            self.leaving.add(model)
            self.drop_idle()

    def drop_idle(self) -> None:
        """Drop the engines whose unload has waited for this."""
        for model in list(self.leaving):
            if self.engines[model].free_slots == self.engines[model].slots:
                self.drop(model)

    def drop(self, model: ModelName) -> None:
        """Close an engine, whatever it does."""
        self.leaving.discard(model)
        if model in self.engines:
            self.engines.pop(model).close()
            self.on_change(replace(self.infos[model], is_loaded=False), None)

    def finish_load(self, model: ModelName, error: str | None = None) -> None:
        """The load that is under way ends, with an engine or an error."""
        waiting = self.loading.pop(model)
        result: Engine | GodwitError
        if error is not None:
            result = ModelLoadError(error)
        else:
            result = self.engines.setdefault(model, StepEngine(self.infos[model], self.slots))
        is_loaded = model in self.engines
        self.on_change(replace(self.infos[model], is_loaded=is_loaded), error)
        for done in waiting:
            done(result)


class Node:
    """One life of one worker. `is_linked` is its own view of its link to the head."""

    def __init__(
        self,
        hello: Hello,
        send_head: Callable[[Message], None],
        send_peer: Callable[[WorkerId, PeerMessage | KvPart], None],
        is_direct: Callable[[WorkerId], bool],
        now: Clock,
    ) -> None:
        self.hello = hello
        self.name = hello.worker
        self.is_up = True
        self.is_linked = False
        self.instances = StepInstances(
            {info.name: info for info in hello.models},
            hello.slots,
            lambda info, error: send_head(ModelChanged(info, error)),
        )
        for info in hello.models:
            if info.is_loaded:
                self.instances.engines[info.name] = StepEngine(info, hello.slots)
        self.requests = WorkerRequests(
            self.instances, send_head, lambda peer, _, message: send_peer(peer, message), is_direct, now
        )

    @property
    def models(self) -> tuple[ModelInfo, ...]:
        """The models as they are now."""
        engines = self.instances.engines
        return tuple(replace(one, is_loaded=one.name in engines) for one in self.instances.infos.values())

    @property
    def has_reports(self) -> bool:
        """Whether engine reports wait for `take_report`."""
        return any(engine.reports for engine in self.instances.engines.values())

    @property
    def has_commands(self) -> bool:
        """Whether an engine has yet to take commands."""
        return any(engine.has_commands for engine in self.instances.engines.values())

    def step(self) -> None:
        """Let every engine do one step."""
        for engine in self.instances.engines.values():
            engine.step()
        self.instances.drop_idle()

    def take_report(self) -> None:
        """Give the worker each engine's oldest report, as its event loop does some time after the step."""
        for engine in list(self.instances.engines.values()):
            if not engine.reports:
                continue
            report = engine.reports.pop(0)
            self.requests.on_step(report)
            if any(isinstance(event, Failed) and event.request is None for event in report):
                for model in list(self.instances.engines):
                    self.instances.drop(model)

"""The instances of one life of one worker in virtual time: as `worker/instances.py`, without threads."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, floor

from msgspec.structs import replace

from godwit.errors import GodwitError, ModelLoadError
from godwit.ports import Engine, EngineEvent
from godwit.protocol.model_messages import STAYS
from godwit.sim.draws import Draws
from godwit.sim.engine import Meter, ModelledEngine
from godwit.sim.host import Host
from godwit.sim.loop import Event, Loop
from godwit.sim.sequence import Plan
from godwit.sim.spec import Rates
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId

CLOSE_S = 30.0
Done = Callable[[Engine | GodwitError], None]
OnChange = Callable[[ModelInfo, str | None, LoadRecord | None], None]


class Driver:
    """Lets one engine step in virtual time: several steps at once (a lump) while nothing changes.

    A command that comes in a lump ends it at the next token boundary, as it would end one step.
    """

    def __init__(
        self,
        loop: Loop,
        make: Callable[[Callable[[], None]], ModelledEngine],
        on_step: Callable[[Sequence[EngineEvent]], None],
        lump: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._on_step = on_step
        self._lump = lump
        self._plan: Plan | None = None
        self._began_s = 0.0
        self._event: Event | None = None
        self.engine = make(self._commanded)

    def catch_up(self) -> None:
        """Tell of the tokens that the lump under way has drawn by now."""
        plan = self._plan
        if plan is None or plan.steps == 1 or self._event is None:
            return
        done = min(plan.steps - 1, floor((self._loop.now_s - self._began_s) / plan.step_s))
        if done < 1:
            return
        self._began_s += done * plan.step_s
        self._plan = Plan(plan.steps - done, plan.step_s)
        self._on_step(self.engine.end(Plan(done, plan.step_s)))

    def close(self) -> None:
        """Nothing more happens."""
        self.engine.close()
        if self._event is not None:
            self._event.cancel()

    def fail(self, request: RequestId | None = None) -> None:
        """One sequence, or (None) the whole engine, breaks now."""
        if request is None:
            self.close()
        self._on_step(self.engine.fail(request))

    def _commanded(self) -> None:
        plan = self._plan
        if self._event is None:
            # Whatever else is commanded in this instant is part of the same step.
            self._event = self._loop.after(0.0, self._begin, priority=1)
        elif plan is not None and plan.is_wait:
            self._event.cancel()
            self._event = self._loop.after(0.0, self._end, priority=1)
        elif plan is not None and plan.steps > 1:
            passed = ceil((self._loop.now_s - self._began_s) / plan.step_s - 1e-9)
            self._schedule(Plan(min(plan.steps, max(1, passed)), plan.step_s))

    def _begin(self, events: Sequence[EngineEvent] = ()) -> None:
        """Begin the next step, and tell what the last one and the commands since have caused.

        What comes of that is commanded while the next step is under way, as in a real engine.
        """
        self._event = None
        plan = self.engine.begin(self._lump())
        self._plan = plan
        events = [*events, *self.engine.take_events()]
        if plan is not None:
            self._began_s = self._loop.now_s
            self._schedule(plan)
        if events:
            self._on_step(events)

    def _schedule(self, plan: Plan) -> None:
        if self._event is not None:
            self._event.cancel()
        self._plan = plan
        self._event = self._loop.at(self._began_s + plan.steps * plan.step_s, self._end)

    def _end(self) -> None:
        if self._plan is not None:
            self._begin(self.engine.end(self._plan))


class ModelledInstances:
    """Implements `ports.Instances`."""

    def __init__(
        self,
        loop: Loop,
        host: Host,
        infos: Mapping[ModelName, ModelInfo],
        slots: int,
        device_bytes: int,
        draws: Draws,
        rates: Callable[[ModelName], Rates],
        cleanup_s: Callable[[], float],
        on_step: Callable[[Sequence[EngineEvent]], None],
        on_change: OnChange,
        lump: Callable[[], int],
        meter: Meter,
    ) -> None:
        self._loop = loop
        self._host = host
        self._infos = dict(infos)
        self._slots = slots
        self._device_bytes = device_bytes
        self._draws = draws
        self._rates = rates
        self._cleanup_s = cleanup_s
        self._on_step = on_step
        self._on_change = on_change
        self._lump = lump
        self._meter = meter
        self.drivers: dict[ModelName, Driver] = {}
        self._loading: dict[ModelName, list[Done]] = {}
        self._waiting: list[ModelName] = []
        self._leaving: dict[ModelName, Event] = {}
        self._closing_bytes = 0
        self._is_closed = False

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        """Every model that can be served here, with its state now."""
        return tuple(self.info(model) for model in self._infos)

    @property
    def loading(self) -> tuple[ModelName, ...]:
        """The models of which a load is under way."""
        return tuple(self._loading)

    @property
    def is_unloading(self) -> bool:
        """Whether an instance is about to go, or its memory is being cleaned up."""
        return bool(self._leaving) or self._closing_bytes > 0

    @property
    def held_bytes(self) -> int:
        """Device memory in use, by loads under way and by what is being cleaned up too."""
        return self._bytes_of({*self.drivers, *self._loading} - {*self._waiting}) + self._closing_bytes

    def info(self, model: ModelName) -> ModelInfo:
        """A model of this worker, with its state now."""
        return replace(self._infos[model], is_loaded=model in self.drivers, tier=self._host.tier(model))

    def get(self, model: ModelName) -> ModelledEngine | None:
        driver = None if model in self._leaving else self.drivers.get(model)
        return None if driver is None else driver.engine

    def load(self, model: ModelName, done: Done) -> None:
        if (leaving := self._leaving.pop(model, None)) is not None:
            leaving.cancel()
        if (driver := self.drivers.get(model)) is not None:
            self._on_change(self.info(model), None, STAYS)
            engine = driver.engine
            self._loop.after(0.0, lambda: done(engine))
        elif model in self._loading:
            self._loading[model].append(done)
        elif (problem := self._no_room(model)) is not None:
            if model in self._infos:
                self._on_change(self.info(model), problem, None)
            self._loop.after(0.0, lambda: done(ModelLoadError(problem)))
        else:
            self._loading[model] = [done]
            self._waiting.append(model)
            self._begin_loads()

    def put(self, model: ModelName) -> None:
        """Have a model loaded at once, as at the start."""
        self.drivers[model] = self._make(model)

    def unload(self, model: ModelName) -> None:
        if model in self._loading:
            self._fail_load(model, f"{model} was unloaded before it was loaded")
            self._begin_loads()
            return
        driver = self.drivers.get(model)
        if driver is None or model in self._leaving:
            return
        if driver.engine.free_slots == driver.engine.slots:
            self.drop(model)
        else:
            self._leaving[model] = self._loop.after(CLOSE_S, lambda: self._stays(model))

    def drop(self, model: ModelName) -> None:
        """Close an engine, whatever it does."""
        if (leaving := self._leaving.pop(model, None)) is not None:
            leaving.cancel()
        if (driver := self.drivers.pop(model, None)) is None:
            return
        driver.close()
        num_bytes = self._bytes_of([model])
        self._closing_bytes += num_bytes

        def cleaned() -> None:
            self._closing_bytes -= num_bytes
            self._begin_loads()

        self._on_change(self.info(model), None, None)
        self._loop.after(self._cleanup_s(), cleaned)

    def has(self, model: ModelName) -> bool:
        """Whether the model can be served here."""
        return model in self._infos

    def add(self, info: ModelInfo) -> None:
        """Serve one more model, whose name is new."""
        self._infos[info.name] = info

    def remove(self, model: ModelName) -> str | None:
        """Forget a model, unloading it first; or why not."""
        if model in self._loading:
            return "it is being loaded"
        driver = self.drivers.get(model)
        if driver is not None and driver.engine.free_slots < driver.engine.slots:
            return "it serves requests"
        self.drop(model)
        del self._infos[model]
        return None

    def fail_loads(self, reason: str) -> None:
        """All loads that are under way fail."""
        for model in list(self._loading):
            self._fail_load(model, reason)
        self._begin_loads()

    def tier_changed(self, model: ModelName) -> None:
        """Tell the head, but of a model that is being loaded only when that is over."""
        if model in self._infos and model not in self._loading and not self._is_closed:
            self._on_change(self.info(model), None, None)

    def close(self) -> None:
        """The worker is gone."""
        self._is_closed = True
        self._loading.clear()
        self._waiting.clear()
        for driver in self.drivers.values():
            driver.close()

    def _no_room(self, model: ModelName) -> str | None:
        if model not in self._infos:
            return f"this worker has no model {model!r}"
        stays = {*self.drivers, *self._loading} - {*self._leaving, model}
        if self._bytes_of(stays) + self._bytes_of([model]) > self._device_bytes:
            return f"{model} does not fit beside what is loaded"
        return None

    def _begin_loads(self) -> None:
        for model in list(self._waiting):
            if self.held_bytes + self._bytes_of([model]) > self._device_bytes:
                continue  # until what is being unloaded has gone
            self._waiting.remove(model)
            waiting = self._loading[model]
            self._host.load(
                model,
                partial(self._loaded, model),
                partial(self._is_wanted, model, waiting),
            )

    def _is_wanted(self, model: ModelName, waiting: list[Done]) -> bool:
        """Whether nobody has called this very load off."""
        return self._loading.get(model) is waiting

    def _loaded(self, model: ModelName, record: LoadRecord) -> None:
        waiting = self._loading.pop(model)
        driver = self.drivers[model] = self._make(model)
        self._on_change(self.info(model), None, record)
        for done in waiting:
            done(driver.engine)

    def _fail_load(self, model: ModelName, reason: str) -> None:
        waiting = self._loading.pop(model)
        if model in self._waiting:
            self._waiting.remove(model)
        self._on_change(self.info(model), reason, None)
        for done in waiting:
            done(ModelLoadError(reason))

    def _make(self, model: ModelName) -> Driver:
        def make(on_command: Callable[[], None]) -> ModelledEngine:
            return ModelledEngine(
                replace(self._infos[model], is_loaded=True),
                self._slots,
                self._draws,
                self._rates(model),
                self._loop.now,
                on_command=on_command,
                on_free=lambda: self._freed(model),
                meter=self._meter,
            )

        return Driver(self._loop, make, self._on_step, self._lump)

    def _freed(self, model: ModelName) -> None:
        driver = self.drivers.get(model)
        if model in self._leaving and driver is not None and driver.engine.free_slots == driver.engine.slots:
            self.drop(model)

    def _stays(self, model: ModelName) -> None:
        del self._leaving[model]
        self._on_change(self.info(model), None, STAYS)
        for waiting in list(self._waiting):
            if (problem := self._no_room(waiting)) is not None:
                self._fail_load(waiting, problem)

    def _bytes_of(self, models: Sequence[ModelName] | set[ModelName]) -> int:
        return sum(self._infos[model].device_bytes for model in models)

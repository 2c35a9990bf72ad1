"""What the scheduler knows of the cluster: immutable, replaced worker by worker, never changed in place.

`gc=False`: values that never change cannot be in a cycle, and a large cluster has a hundred thousand of them
that the collector would visit again and again, for up to 125 ms.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from godwit.costs.survival import Floats
from godwit.errors import InvariantBrokenError
from godwit.scheduling.ask import Ask
from godwit.types import ModelInfo, ModelName, RequestId, Tier, WorkerId


class Times(Protocol):
    """What things are expected to take, as far as has been learnt; reading changes nothing."""

    def load_s(self, worker: WorkerId, info: ModelInfo) -> float:
        """From the load's turn in its queue until the model is on the device: n/b of `costs.loading`.

        0 where it is loaded; `info.tier` says from where it comes.
        """
        ...

    def resume_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        """Until `worker` has the KV of a request that moves there: a·(t_in + t_out) + b."""
        ...

    def token_s(self, worker: WorkerId, model: ModelName) -> float:
        """Mean time per output token; above 0."""
        ...

    def prefill_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        """Until `worker` draws for a request that starts there with so many tokens: a line in these."""
        ...

    def remaining_tokens(
        self, model: ModelName, num_output: float, expected_tokens: int | None, max_tokens: int | None
    ) -> float:
        """Output tokens that a request is expected to draw after the first `num_output`; above 0.

        `expected_tokens` is what its client guessed for the whole output.
        """
        ...


class Hazards(Protocol):
    """How likely servers are to stay; reading changes nothing that shows."""

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        """The probability that each worker (n), which is here at `now`, still is after each of its horizons.

        `horizons_s` is (n, k), each ≥ 0, and so is the answer. A worker may stand there several times.
        """
        ...


class Risks(Struct, frozen=True):
    """What makes leaving costly: how likely it is, and the stall before a lost request is taken up again."""

    hazards: Hazards
    stall_s: float = 5.0


Contexts = tuple[tuple[int, frozenset[WorkerId]], ...]
"""The lengths of context of a model's holders, shortest first, each with those that have none longer."""


class Running(Struct, frozen=True, gc=False):
    """A request that holds a slot on a worker.

    It had `num_tokens` (prompt and output) `at_s`, and has been decoding since; both are 0 and None until its
    worker has accepted it. `is_moving`: a move of it is under way. Before `stays_until_s` it must not be
    moved or preempted to make room: such a move has just failed, or it has been preempted before.
    """

    request: RequestId
    model: ModelName
    worker: WorkerId
    num_tokens: int = 0
    at_s: float | None = None
    is_moving: bool = False
    stays_until_s: float = float("-inf")
    ask: Ask = Ask()

    def context_tokens(self, now: float, token_s: float) -> float:
        """t_in + t_out, with t_out = d/t: nobody is asked how far it is. Before it is accepted, as asked."""
        if self.at_s is None:
            return max(self.num_tokens, self.ask.context_tokens)
        return self.num_tokens + max(0.0, now - self.at_s) / token_s

    def output_tokens(self, now: float, token_s: float) -> float:
        """t_out alone; 0 as long as the prompt's length is unknown."""
        if self.ask.num_prompt is None:
            return 0.0
        return max(0.0, self.context_tokens(now, token_s) - self.ask.num_prompt)


class ModelView(Struct, frozen=True, gc=False):
    """One model on one worker.

    `num_reserved` slots are kept for requests that are moving there, `num_promised` for requests that wait
    for the model to be loaded. `is_loading`: its memory is booked and a load is under way. `is_coming`: its
    load begins once the instances that are in its way have left (`is_leaving`: this is one of those, and
    takes nothing new). While either, it is expected to be ready at `ready_at_s`. `used_at_s` is when it last
    began or ceased to serve.
    """

    info: ModelInfo
    running: tuple[Running, ...] = ()
    num_reserved: int = 0
    num_promised: int = 0
    is_loading: bool = False
    is_coming: bool = False
    is_leaving: bool = False
    is_pinned: bool = False
    ready_at_s: float = 0.0
    used_at_s: float = 0.0

    @property
    def num_running(self) -> int:
        """Requests that run here."""
        return len(self.running)

    @property
    def num_used(self) -> int:
        """Slots that nobody else can have."""
        return len(self.running) + self.num_reserved + self.num_promised

    @property
    def holds_device(self) -> bool:
        """Whether the model takes device memory, now or in a moment."""
        return self.info.is_loaded or self.is_loading

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded for nobody: only such a one may be evicted, if it is not pinned."""
        return self.info.is_loaded and not self.is_loading and self.num_used == 0

    @property
    def is_evictable(self) -> bool:
        """Whether the instance may be unloaded at any moment."""
        return self.is_idle and not self.is_pinned and not self.is_leaving


class WorkerView(Struct, frozen=True):
    """One worker that is connected; `slots` is per loaded model, `device_bytes` its whole device memory.

    `claimed_bytes` are free and kept for models that are coming (`ModelView.is_coming`). `on_device` are the
    models that hold device memory, `held_bytes` of it, and evictable ones `evictable_bytes`, so that nobody
    has to look at all models.
    """

    id: WorkerId
    incarnation: int
    slots: int
    device_bytes: int
    models: Mapping[ModelName, ModelView]
    is_draining: bool = False
    claimed_bytes: int = 0
    on_device: tuple[ModelName, ...] = ()
    held_bytes: int = 0
    evictable_bytes: int = 0
    num_used: int = 0

    @property
    def load(self) -> float:
        """Slots in use as a fraction of one model's slots, so that big and small workers compare."""
        return self.num_used / self.slots

    @property
    def free_bytes(self) -> int:
        """Device memory that no model holds and that is not kept for one."""
        return self.device_bytes - self.held_bytes - self.claimed_bytes

    @property
    def room_bytes(self) -> int:
        """Device memory that can be had at once: what is free and what evictable instances hold."""
        return self.free_bytes + self.evictable_bytes

    @property
    def has_room(self) -> bool:
        """Whether anything could begin here, or be promised: in memory to be had, or a free slot of an
        instance that is loaded or being loaded."""
        on_device = (self.models[name] for name in self.on_device)
        return self.room_bytes > 0 or any(
            (one.info.is_loaded or one.is_loading) and one.num_used < self.slots for one in on_device
        )

    def check_memory(self, least_bytes: int = 0) -> None:
        """InvariantBrokenError where less than `least_bytes` are free."""
        if self.free_bytes < least_bytes:
            raise InvariantBrokenError(
                f"{self.id} has {self.device_bytes} bytes: {self.held_bytes} are held, "
                f"{self.claimed_bytes} claimed, {-self.free_bytes} too many"
            )

    def queue_s(self, tier: Tier, now: float) -> float:
        """Seconds until loads from `tier` that are under way here are expected to be over: q."""
        models = (self.models[name] for name in self.on_device)
        ends = (model.ready_at_s for model in models if model.is_loading and model.info.tier is tier)
        return max(0.0, max(ends, default=now) - now)

    def with_model(self, model: ModelView) -> "WorkerView":
        """The worker with one model's view replaced; InvariantBrokenError where its slots do not add up."""
        counts = (model.num_running, model.num_reserved, model.num_promised)
        if min(counts) < 0 or sum(counts) > self.slots:
            raise InvariantBrokenError(
                f"slots of {model.info.name} on {self.id}: {counts[0]} running + {counts[1]} reserved + "
                f"{counts[2]} promised, of {self.slots}"
            )
        name, former = model.info.name, self.models.get(model.info.name)
        others = tuple(one for one in self.on_device if one != name)
        return replace(
            self,
            models={**self.models, name: model},
            on_device=(*others, name) if model.holds_device else others,
            held_bytes=self.held_bytes + _held(model) - (0 if former is None else _held(former)),
            evictable_bytes=self.evictable_bytes
            + _evictable(model)
            - (0 if former is None else _evictable(former)),
            num_used=self.num_used + sum(counts) - (0 if former is None else former.num_used),
        )


class ClusterView(Struct, frozen=True):
    """All connected workers at one moment, `now`.

    `holders` are the workers that serve a model, loaded or not. `draw` is a random number from [0, 1), new
    for each decision. `ask` is the request that is placed, and empty where only a model is asked about.
    `contexts` keeps what `keeping` has found, for as long as nobody comes, goes or changes.
    """

    workers: Mapping[WorkerId, WorkerView]
    holders: Mapping[ModelName, Collection[WorkerId]]
    times: Times
    now: float = 0.0
    draw: float = 0.0
    risks: Risks | None = None
    ask: Ask = Ask()
    contexts: dict[ModelName, Contexts] = {}


def _held(model: ModelView) -> int:
    return model.info.device_bytes if model.holds_device else 0


def _evictable(model: ModelView) -> int:
    return model.info.device_bytes if model.is_evictable else 0

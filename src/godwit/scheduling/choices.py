"""What a policy answers: a worker for a request, and what must happen before it can run there."""

from enum import IntEnum

from msgspec import Struct

from godwit.types import ModelName, WorkerId


class Step(IntEnum):
    """What must happen before a request can run at the chosen worker.

    START: nothing, an instance has a free slot. WAIT_FOR_LOAD: a load that is under way or claimed must end.
    LOAD: idle instances are evicted, then the model is loaded. CLEAR: so it is, but busy instances stand in
    the way, whose requests must move, be preempted or end first.
    """

    START = 0
    WAIT_FOR_LOAD = 1
    LOAD = 2
    CLEAR = 3


class Victim(Struct, frozen=True):
    """A busy instance that must leave: its requests move to `destination`, or (None) are preempted, or left
    to end (`may_end`) while it takes nothing new.

    `load_s` until the destination can take them, 0 where the model is loaded there; `resume_s` until it has
    the KV of all of them, or until somebody has it again.
    """

    model: ModelName
    destination: WorkerId | None
    load_s: float
    resume_s: float
    may_end: bool = False

    @property
    def seconds(self) -> float:
        """Until the instance can be unloaded: a preempted one can at once; when others end nobody knows."""
        return 0.0 if self.destination is None else self.load_s + self.resume_s


class Choice(Struct, frozen=True):
    """A worker for a request, and when it can start there: in `seconds`.

    With LOAD and CLEAR, `evict` are the idle models to unload before; with CLEAR, `victims` must leave.
    `queue_s` is the wait for what happens there already, `load_s` the load.
    """

    worker: WorkerId
    step: Step
    evict: tuple[ModelName, ...] = ()
    victims: tuple[Victim, ...] = ()
    queue_s: float = 0.0
    load_s: float = 0.0

    @property
    def clear_s(self) -> float:
        """Until all victims have left; one after the other, since their moves share the source's link."""
        return sum(victim.seconds for victim in self.victims)

    @property
    def thrown_away_s(self) -> float:
        """What it takes to compute the KV of the preempted requests once more."""
        return sum(victim.resume_s for victim in self.victims if victim.destination is None)

    @property
    def seconds(self) -> float:
        """The startup time: until the request can start."""
        return self.queue_s + self.clear_s + self.load_s

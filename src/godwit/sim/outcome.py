"""What came of a simulation: one record a request, one a move, one a load, and sums. Pure values."""

from msgspec import Struct

from godwit.protocol.entry import MoveRecord
from godwit.sim.spec import Ask
from godwit.types import LoadRecord, WorkerId


class Answer(Struct, frozen=True):
    """One request as its client saw it; times are virtual seconds, None where there was no such moment.

    `decode_s` is what drawing its tokens takes on the worker that it ended on when nobody disturbs it.
    `problem` is why it has no whole answer ("timeout", or an error's text). `num_moves` were done,
    `num_early` of them to leave a server early; `num_losses` are unplanned losses of its server, `num_kills`
    preemptions. `wasted_s` are device seconds spent on what had been computed before, or nobody got;
    `planned_s` of them destinations of its moves spent.
    """

    ask: Ask
    first_s: float | None
    end_s: float | None
    num_tokens: int
    decode_s: float = 0.0
    num_moves: int = 0
    num_early: int = 0
    num_losses: int = 0
    num_kills: int = 0
    problem: str | None = None
    wasted_s: float = 0.0
    planned_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """From the request to its first token."""
        return None if self.first_s is None else self.first_s - self.ask.at_s

    @property
    def latency_s(self) -> float | None:
        """From the request to its last token."""
        return None if self.end_s is None else self.end_s - self.ask.at_s

    @property
    def startup_s(self) -> float | None:
        """Time in which it did not decode: until it started, and all pauses of moves, kills and losses."""
        return None if self.end_s is None else max(0.0, self.end_s - self.ask.at_s - self.decode_s)


class Load(Struct, frozen=True):
    """A load that is over."""

    at_s: float
    worker: WorkerId
    record: LoadRecord


class Outcome(Struct, frozen=True):
    """All of it: `link_bytes` were sent over all links, `num_events` simulated until `end_s`."""

    answers: tuple[Answer, ...]
    moves: tuple[MoveRecord, ...]
    loads: tuple[Load, ...]
    link_bytes: int
    num_events: int
    end_s: float

"""Ownership of one request: its ids so far, and which worker may append to them.

The journal takes output index n once, from the owner of the current epoch. A move *offers* the request to a
candidate under a new epoch; the candidate becomes the owner with its first event. Epochs only grow, so what
a former owner or a revoked candidate still sends is refused, however late it comes.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from godwit.errors import InvariantBrokenError
from godwit.protocol.messages import TokenEvent
from godwit.types import Alternative, Epoch, TokenId, WorkerId

_NO_EPOCH = Epoch(0)


class Verdict(Enum):
    """What became of an event."""

    TAKEN = auto()
    """It came from the owner; there may be nothing new in it."""
    ADOPTED = auto()
    """It came from the candidate, who is the owner now."""
    STALE = auto()
    """Its epoch is over: nothing was taken."""
    GAP = auto()
    """Its sender is entitled, but tokens before `first_index` are missing: nothing was taken."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The new part of an event: outputs `first_index` and on, and the finish reason if there is one."""

    first_index: int
    ids: list[TokenId]
    texts: list[bytes]
    alternatives: tuple[tuple[Alternative, ...], ...]
    finish: str | None


@dataclass(slots=True)
class Journal:
    """One request's output ids and ownership. Not thread-safe; no I/O.

    `owner` is None before the first placement and after a failure until the next one.
    """

    output_ids: list[TokenId] = field(default_factory=list)
    prompt_ids: tuple[TokenId, ...] | None = None
    owner: WorkerId | None = None
    epoch: Epoch = _NO_EPOCH
    candidate: WorkerId | None = None
    candidate_epoch: Epoch = _NO_EPOCH
    is_finished: bool = False

    def _next_epoch(self) -> Epoch:
        return Epoch(max(self.epoch, self.candidate_epoch) + 1)

    def assign(self, worker: WorkerId) -> Epoch:
        """Give the request to `worker` under a new epoch; whoever had it before is fenced off."""
        if self.candidate is not None:
            raise InvariantBrokenError("assigned while offered: revoke the candidate first")
        self.epoch = self._next_epoch()
        self.owner = worker
        return self.epoch

    def disown(self) -> None:
        """The owner is gone: nothing is taken from its epoch any more, nor from a candidate's."""
        self.revoke()
        self.epoch = self._next_epoch()
        self.owner = None

    def offer(self, worker: WorkerId) -> Epoch:
        """Name the destination of a move; it owns the request from its first event on."""
        if self.candidate is not None or self.owner is None:
            raise InvariantBrokenError("offered twice, or without an owner")
        self.candidate_epoch = self._next_epoch()
        self.candidate = worker
        return self.candidate_epoch

    def revoke(self) -> None:
        """The candidate will never own the request under this offer; harmless where there is none."""
        self.candidate = None

    def is_entitled(self, worker: WorkerId, epoch: Epoch) -> bool:
        """Whether `worker` is the owner of `epoch`, the current one."""
        return worker == self.owner and epoch == self.epoch

    def take(self, worker: WorkerId, event: TokenEvent) -> tuple[Verdict, Fresh | None]:
        """Append what is new in `event`; Fresh is None unless something was.

        An event that overlaps what is known is cut to its new part, so repeats are harmless.
        """
        if self.is_finished:
            return Verdict.STALE, None
        verdict = Verdict.TAKEN
        if event.epoch != self.epoch or worker != self.owner:
            if worker != self.candidate or event.epoch != self.candidate_epoch:
                return Verdict.STALE, None
            verdict = Verdict.ADOPTED
        skip = len(self.output_ids) - event.first_index
        if skip < 0:
            return Verdict.GAP, None
        if verdict is Verdict.ADOPTED:
            self.owner, self.epoch = worker, event.epoch
            self.candidate = None
        return verdict, self._append(event, skip)

    def _append(self, event: TokenEvent, skip: int) -> Fresh | None:
        ids, texts = event.ids, event.texts
        alternatives = event.alternatives
        finish = event.finish if skip <= len(ids) else None
        if skip:
            ids, texts, alternatives = ids[skip:], texts[skip:], alternatives[skip:]
        if not ids and finish is None:
            return None
        first = len(self.output_ids)
        self.output_ids.extend(ids)
        self.is_finished = finish is not None
        return Fresh(first, ids, texts, alternatives, finish)

"""Ownership of one request: its ids so far, and which worker may append to them.

The journal takes output index n once, from the owner of the current epoch. A move *offers* the request to a
candidate under a new epoch; the candidate becomes the owner with its first event. Epochs only grow, so what
a former owner or a revoked candidate still sends is refused, however late it comes.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from godwit.errors import InvariantBrokenError
from godwit.protocol.messages import TokenEvent
from godwit.types import Epoch, TokenId, WorkerId

_NO_EPOCH = Epoch(0)
NO_BOUND = 2**31 - 1


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


# Looking a member up in its Enum costs 0.1 µs, which a token notices.
TAKEN, ADOPTED, STALE, GAP = Verdict


@dataclass(slots=True)
class Journal:
    """One request's output ids and ownership. Not thread-safe; no I/O.

    `owner` is None before the first placement and after a failure until the next one. At `max_output` output
    tokens the request is finished, whatever a worker sends.
    """

    output_ids: list[TokenId] = field(default_factory=list)
    prompt_ids: tuple[TokenId, ...] | None = None
    owner: WorkerId | None = None
    epoch: Epoch = _NO_EPOCH
    candidate: WorkerId | None = None
    candidate_epoch: Epoch = _NO_EPOCH
    is_finished: bool = False
    max_output: int = NO_BOUND

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_ids or ()) + len(self.output_ids)

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

    def is_candidate(self, worker: WorkerId, epoch: Epoch) -> bool:
        """Whether `worker` is the candidate, and `epoch` the one that it was offered."""
        return worker == self.candidate and epoch == self.candidate_epoch

    def take(self, worker: WorkerId, event: TokenEvent) -> tuple[Verdict, TokenEvent | None]:
        """Append what is new in `event`, and return the event cut to that; None where nothing is new.

        An event that overlaps what is known is cut to its new part, so repeats are harmless.
        """
        if self.is_finished:
            return STALE, None
        verdict = TAKEN
        if event.epoch != self.epoch or worker != self.owner:
            if not self.is_candidate(worker, event.epoch):
                return STALE, None
            verdict = ADOPTED
        known = len(self.output_ids)
        skip = known - event.first_index
        if skip < 0:
            return GAP, None
        if verdict is ADOPTED:
            self.owner, self.epoch = worker, event.epoch
            self.candidate = None
        if skip:
            event = _without(event, skip)
        if known + len(event.ids) >= self.max_output:
            event = _ended(event, self.max_output - known)
        self.output_ids += event.ids
        if event.finish is not None:
            self.is_finished = True
        elif not event.ids:
            return verdict, None
        return verdict, event


def _ended(event: TokenEvent, room: int) -> TokenEvent:
    """The first `room` tokens of the event, as the request's last: it is full with them."""
    if len(event.ids) == room and event.finish is not None:
        return event
    return TokenEvent(
        event.request,
        event.epoch,
        event.first_index,
        event.ids[:room],
        event.texts[:room],
        "length",
        event.alternatives[:room],
    )


def _without(event: TokenEvent, skip: int) -> TokenEvent:
    """The event without its first `skip` tokens, and without a finish that was due before their end."""
    return TokenEvent(
        event.request,
        event.epoch,
        event.first_index + skip,
        event.ids[skip:],
        event.texts[skip:],
        event.finish if skip <= len(event.ids) else None,
        event.alternatives[skip:],
    )

"""What `served.ServedEngine` knows of one sequence."""

import asyncio
from dataclasses import dataclass

from godwit.engines.sequence import OpenRound, Phase
from godwit.engines.server import Drawn, Seat
from godwit.ports import Ended, EngineEvent, Generated, Held, SequenceSpec
from godwit.protocol.awaiting import AwaitedKv
from godwit.types import RequestId, TokenId


@dataclass(slots=True, eq=False)
class ServedSequence:
    """One request in a slot; `work` is what the server does for it now, since `asked_s`."""

    request: RequestId
    slot: int
    spec: SequenceSpec
    tokens: list[TokenId]
    round: OpenRound | None
    awaited: AwaitedKv | None
    num_computed: int = 0
    phase: Phase = Phase.HELD
    hold_at: int | None = None
    pace: float = 1.0
    work: asyncio.Task[None] | None = None
    asked_s: float = 0.0

    @property
    def seat(self) -> Seat:
        return Seat(self.slot, self.request)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.spec.prompt_ids)

    def cancel(self) -> None:
        """Have the server stop what it does for this sequence; `work` ends a little later."""
        if self.work is not None:
            self.work.cancel()

    def take(self, drawn: Drawn, context_tokens: int) -> list[EngineEvent]:
        """Take what was drawn, up to where the sequence is to stop; then it generates no more.

        A round that was begun is over: `draw` has computed what was left of it.
        """
        events: list[EngineEvent] = []
        for token in drawn.tokens:
            events.append(Generated(self.request, self.num_output, token))
            self.tokens.append(token.id)
            self.round, self.num_computed = None, len(self.tokens) - 1
            if (end := self.stop_due(context_tokens)) is not None:
                return [*events, end]
        if drawn.finish is not None:
            self.phase = Phase.ENDED
            events.append(Ended(self.request, self.num_output, drawn.finish))
        return events

    def stop_due(self, context_tokens: int) -> Ended | Held | None:
        """End or hold a sequence that may draw no more."""
        if len(self.tokens) >= context_tokens or self.num_output >= self.spec.sampling.max_tokens:
            self.phase = Phase.ENDED
            return Ended(self.request, self.num_output, "length")
        if self.hold_at is not None and self.num_output >= self.hold_at:
            self.phase, self.hold_at = Phase.HELD, None
            return Held(self.request, self.num_output)
        return None

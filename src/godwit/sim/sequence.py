"""What a modelled engine knows of one sequence, and what a step can be."""

from dataclasses import dataclass
from typing import NamedTuple

from godwit.ports import SequenceSpec
from godwit.protocol.awaiting import AwaitedKv
from godwit.sim.spec import Rates
from godwit.types import TokenId

TAIL_TOKENS = 8
"""As in engines/sequence.py: so few new tokens ride along instead of taking turns with the prompts."""

INF = float("inf")
SOON_S = 1e-9


class Plan(NamedTuple):
    """What the engine does next: `steps` steps that take `step_s` each and change nothing but by drawing.

    In a wait it does nothing: all that it could do is paced, and the next command ends it.
    """

    steps: int
    step_s: float
    is_wait: bool = False


@dataclass(slots=True)
class Slot:
    """What the engine knows and has computed; `round` is the first token and the end of an open one.

    `planned` tokens are computed in the step under way. Of several prompts that with the lowest `turn` is
    next. One that is paced draws no more before `not_before_s`.
    """

    spec: SequenceSpec
    tokens: list[TokenId]
    began_s: float
    num_computed: int = 0
    round: tuple[int, int] | None = None
    is_generating: bool = False
    is_ended: bool = False
    hold_at: int | None = None
    awaited: AwaitedKv | None = None
    num_own: int = 0
    own_began_s: float = 0.0
    pace: float = 1.0
    not_before_s: float = 0.0
    planned: int = 0
    turn: int = 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.spec.prompt_ids)

    @property
    def num_new(self) -> int:
        """Tokens whose KV it could compute now."""
        target = (
            len(self.tokens) if self.is_generating else self.round[1] if self.round else self.num_computed
        )
        if self.awaited is not None:
            target = min(target, self.awaited.limit(self.num_computed, target))
        return target - self.num_computed


def share_chunk(prefilling: list[Slot], chunk_tokens: int) -> int:
    """Plan prompts' tokens, of those that wait longest, as many as a step computes; how many those are."""
    if len(prefilling) > 1:
        prefilling.sort(key=lambda one: one.turn)
    room = chunk_tokens
    for one in prefilling:
        one.planned = min(room, one.planned)
        room -= one.planned
    return chunk_tokens - room


def decode_s(rates: Rates, num_requests: int) -> float:
    """Seconds of a step that draws for so many requests."""
    known = rates.decode_s
    if num_requests <= len(known):
        return known[num_requests - 1]
    slope = known[-1] - known[-2] if len(known) > 1 else 0.0
    return known[-1] + slope * (num_requests - len(known))

"""What is computed next, as a pure function."""

from godwit.engines.sequence import TAIL_TOKENS, OpenRound, Phase, SequenceState, plan_step
from godwit.ports import SequenceSpec
from godwit.types import RequestId, Sampling

CHUNK = 64


def state(
    slot: int, num_tokens: int, num_computed: int, phase: Phase = Phase.GENERATING, *, turn: int = 0
) -> SequenceState:
    spec = SequenceSpec(tuple(range(num_tokens)), (), Sampling(seed=1, max_tokens=9))
    made = SequenceState(RequestId(str(slot)), slot, spec, list(range(num_tokens)), None, turn)
    made.num_computed, made.phase = num_computed, phase
    return made


def spans(*states: SequenceState, now_s: float = 0.0) -> list[tuple[int, int, int, bool]]:
    plan = plan_step(states, now_s, CHUNK)
    return [(s.slot, s.start, len(s.ids), s.keep_logits) for _, s in plan.spans]


def test_decodes_and_short_tails_come_whole_and_keep_their_logits() -> None:
    assert spans(state(0, 10, 9), state(1, 30, 30 - TAIL_TOKENS)) == [
        (0, 9, 1, True),
        (1, 30 - TAIL_TOKENS, TAIL_TOKENS, True),
    ]


def test_one_chunk_in_all_goes_to_those_that_wait_longest() -> None:
    first, second, third = state(0, 300, 0, turn=5), state(1, 40, 0, turn=2), state(2, 300, 100, turn=3)
    assert spans(first, second, third) == [(1, 0, 40, True), (2, 100, 24, False)]


def test_a_held_sequence_computes_up_to_the_end_of_its_round() -> None:
    held = state(0, 20, 10, Phase.HELD)
    assert spans(held) == []
    held.round = OpenRound(10, 14, 0.0)
    assert spans(held) == [(0, 10, 4, False)]


def test_an_ended_sequence_computes_nothing() -> None:
    assert spans(state(0, 20, 10, Phase.ENDED)) == []


def test_a_paced_sequence_waits_and_the_plan_says_how_long() -> None:
    early, late = state(0, 10, 9), state(1, 10, 9)
    early.not_before_s, late.not_before_s = 5.0, 7.0
    plan = plan_step([early, late], 4.0, CHUNK)
    assert (plan.spans, plan.wait_s) == ([], 1.0)
    assert spans(early, late, now_s=6.0) == [(0, 9, 1, True)]


def test_nothing_to_do_waits_for_a_command() -> None:
    assert plan_step([], 0.0, CHUNK).wait_s is None

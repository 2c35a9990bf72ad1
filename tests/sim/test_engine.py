"""What a modelled engine's steps take, as of the real one (`engines/batching.py`)."""

import pytest

from godwit.ports import Computed, EngineEvent, Generated, SequenceSpec
from godwit.sim.draws import HashedDraws
from godwit.sim.engine import ModelledEngine
from godwit.sim.instances import Driver
from godwit.sim.loop import Loop
from godwit.sim.spec import Rates
from godwit.types import ModelInfo, ModelName, RequestId, Sampling

A, B = RequestId("a"), RequestId("b")
GREEDY = Sampling(0, 1000, temperature=0, ignore_eos=True)
INFO = ModelInfo(ModelName("m"), "digest", 4096, 1, is_loaded=True, has_chat_template=False)
DECODE_S, PREFILL_TPS, CHUNK = 0.04, 1000.0, 64


class Rig:
    """One engine, and all that it has told, with the time of it."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.told: list[tuple[float, EngineEvent]] = []
        rates = Rates((DECODE_S,), PREFILL_TPS, CHUNK)
        self.engine = Driver(
            self.loop,
            lambda on_command: ModelledEngine(
                INFO, 4, HashedDraws(), rates, self.loop.now, on_command=on_command
            ),
            lambda events: self.told.extend((self.loop.now_s, event) for event in events),
            lambda: 1,
        ).engine

    def open(self, request: RequestId, num_prompt: int, *, generates: bool = True) -> None:
        self.engine.open(request, SequenceSpec((1,) * num_prompt, (), GREEDY))
        if generates:
            self.engine.generate(request)

    def until(self, end_s: float) -> None:
        while self.loop.next_s <= end_s:
            self.loop.step()
        self.loop.at(end_s, lambda: None)
        self.loop.step()

    def drawn_s(self, request: RequestId, since_s: float = 0.0) -> list[float]:
        """When it drew each token after a time."""
        return [
            at_s
            for at_s, event in self.told
            if isinstance(event, Generated) and event.request == request and at_s > since_s
        ]


def test_prompts_are_computed_by_the_chunk_and_decoding_goes_on_meanwhile() -> None:
    rig = Rig()
    rig.open(A, 2)
    rig.until(0.1)
    rig.open(B, 2 * CHUNK)
    rig.until(1.0)
    # Its second step begins at 0.122; each one with a chunk takes that much longer.
    chunk_s = CHUNK / PREFILL_TPS
    first_s = 0.002 + 3 * DECODE_S + 2 * (DECODE_S + chunk_s)
    assert rig.drawn_s(B)[0] == pytest.approx(first_s)
    assert rig.drawn_s(A)[4:6] == pytest.approx([first_s - DECODE_S - chunk_s, first_s])


def test_two_prompts_share_the_chunk() -> None:
    rig = Rig()
    rig.open(A, 3 * CHUNK)
    rig.open(B, 3 * CHUNK)
    rig.until(1.0)
    assert rig.drawn_s(A)[0] == pytest.approx(5 * CHUNK / PREFILL_TPS)
    assert rig.drawn_s(B)[0] == pytest.approx(6 * CHUNK / PREFILL_TPS + DECODE_S)


def test_a_shadow_round_of_one_token_costs_a_pass() -> None:
    rig = Rig()
    rig.open(A, 10, generates=False)
    rig.until(0.1)
    rig.engine.append(A, [5])
    rig.until(1.0)
    rounds = [event for _, event in rig.told if isinstance(event, Computed)]
    assert [one.round_tokens for one in rounds] == [10, 1]
    assert [one.seconds for one in rounds] == pytest.approx([0.01, DECODE_S])


def test_tokens_join_a_round_of_which_nothing_is_computed() -> None:
    rig = Rig()
    rig.open(A, 10, generates=False)
    rig.until(0.1)
    rig.engine.append(A, [5])
    rig.engine.append(A, [6, 7])
    rig.until(1.0)
    rounds = [event.round_tokens for _, event in rig.told if isinstance(event, Computed)]
    assert rounds == [10, 3]


def test_pace_slows_one_request_down() -> None:
    rig = Rig()
    rig.open(A, 2)
    rig.engine.pace(A, 1.25)
    rig.until(1.0)
    gaps = [later - earlier for earlier, later in zip(rig.drawn_s(A), rig.drawn_s(A)[1:], strict=False)]
    assert gaps[2:] == pytest.approx([1.25 * DECODE_S] * len(gaps[2:]))


def test_pace_lets_others_in_the_batch_alone() -> None:
    rig = Rig()
    for request in (A, B):
        rig.open(request, 2)
    rig.engine.pace(A, 1.25)
    rig.until(1.0)
    # The paced one is not due when a pass begins, and takes part in every other one.
    assert len(rig.drawn_s(B, 0.5)) == pytest.approx(0.5 / DECODE_S, abs=1)
    assert len(rig.drawn_s(A, 0.5)) == pytest.approx(0.25 / DECODE_S, abs=1)


def test_a_paced_engine_takes_a_command_while_it_waits() -> None:
    rig = Rig()
    rig.open(A, 2)
    rig.engine.pace(A, 100)
    rig.until(0.5)
    num_before = len(rig.drawn_s(A))
    rig.open(B, 20)
    rig.until(0.53)
    assert len(rig.drawn_s(B)) == 1
    assert len(rig.drawn_s(A)) == num_before

"""The loop itself, on the fake: fairness, pacing, failures, stalls."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest

from godwit.engines.batching import BatchingEngine
from godwit.engines.fake import FakeOptions, FakeRunner, fake_info
from godwit.engines.runner import Span
from godwit.errors import EngineError
from godwit.ports import Computed, Failed, Generated, SequenceSpec
from godwit.types import ModelName, Sampling, Token
from tests.engines.rig import Rig

CONTEXT_TOKENS = 100_000
CHUNK = 64
ENDLESS = Sampling(seed=1, max_tokens=CONTEXT_TOKENS, ignore_eos=True)


class BreakingRunner(FakeRunner):
    """Its third pass fails."""

    def forward(self, spans: Sequence[Span]) -> None:
        super().forward(spans)
        if self._num_passes == 3:
            raise EngineError("out of memory")


class HangingRunner(FakeRunner):
    """Its draws hang until `may_go_on`."""

    is_drawing = threading.Event()
    may_go_on = threading.Event()

    def draw(self, slot: int) -> Token | None:
        self.is_drawing.set()
        self.may_go_on.wait(10)
        return super().draw(slot)


@contextmanager
def running(options: FakeOptions | None = None, *, runner: type[FakeRunner] = FakeRunner) -> Iterator[Rig]:
    options = options or FakeOptions()
    info = fake_info(ModelName("fake"), 4, CONTEXT_TOKENS, options, is_loaded=True)
    rig = Rig(BatchingEngine(runner(info, 4, options), prefill_chunk_tokens=CHUNK))
    try:
        yield rig
    finally:
        rig.engine.close()


def spec(num_prompt: int, sampling: Sampling = ENDLESS) -> SequenceSpec:
    return SequenceSpec(tuple(i % 256 for i in range(num_prompt)), (), sampling)


def test_a_long_prefill_never_costs_a_running_request_a_step() -> None:
    with running(FakeOptions(decode_s=0.0002)) as rig:
        fast = rig.open(spec(5))
        rig.engine.generate(fast)
        rig.wait_for(fast, Generated)
        slow = rig.open(spec(40 * CHUNK))
        rig.wait_for(slow, Computed)
        rig.engine.hold(fast)
        rig.held(fast)
        steps = [step for step, event in rig.steps(fast) if isinstance(event, Generated)]
    assert len(steps) > 40
    assert {b - a for a, b in pairwise(steps)} == {1}


def test_prefills_take_turns_and_share_one_chunk() -> None:
    with running(FakeOptions(decode_s=0.0002)) as rig:
        blocker = rig.open(spec(5))
        rig.engine.generate(blocker)
        rig.wait_for(blocker, Generated)
        long, short = rig.open(spec(30 * CHUNK)), rig.open(spec(3 * CHUNK))
        rig.wait_for(long, Computed)
        ends = {r: step for r in (long, short) for step, e in rig.steps(r) if isinstance(e, Computed)}
    assert ends[long] - ends[short] >= 30 - 3 - 1, "the short one is done after about six shared chunks"


def test_a_paced_request_takes_its_time_and_holds_nobody_up() -> None:
    with running(FakeOptions(decode_s=0.002)) as rig:
        paced, free = rig.open(spec(5)), rig.open(spec(6))
        for request in (paced, free):
            rig.engine.generate(request)
        rig.wait_for(paced, Generated, occurrences=5)
        rig.engine.pace(paced, 6.0)
        before = len(rig.outputs(paced)), len(rig.outputs(free))
        rig.wait_for(free, Generated, occurrences=before[1] + 60)
        after = len(rig.outputs(paced)), len(rig.outputs(free))
        rig.engine.pace(paced, 1.0)
        rig.wait_for(paced, Generated, occurrences=after[0] + 20)
    assert 0 < (after[0] - before[0]) * 2 < after[1] - before[1]


def test_a_paced_request_alone_still_goes_on() -> None:
    with running(FakeOptions(decode_s=0.001)) as rig:
        request = rig.open(spec(5))
        rig.engine.pace(request, 3.0)
        rig.engine.generate(request)
        rig.wait_for(request, Generated, occurrences=20)


def test_a_failed_pass_ends_the_engine_and_says_so_once() -> None:
    with running(runner=BreakingRunner) as rig:
        request = rig.open(spec(5))
        rig.engine.generate(request)
        assert "out of memory" in rig.failure(None)
        with pytest.raises(EngineError, match="out of memory"):
            rig.engine.open(rig.name(), spec(5))
        rig.engine.release(request)
        assert rig.engine.free_slots == 4
    assert sum(isinstance(e, Failed) for e in rig.events(None)) == 1


def test_a_stalled_engine_stands_still_in_a_step_and_can_be_closed() -> None:
    with running(FakeOptions(stall_after_steps=3)) as rig:
        request = rig.open(spec(5))
        rig.engine.generate(request)
        rig.wait_for(request, Generated, occurrences=3)
    assert len(rig.outputs(request)) <= 4
    assert rig.engine.free_slots == 3
    with pytest.raises(EngineError, match="closed"):
        rig.engine.open(rig.name(), spec(5))


def test_a_draw_that_hangs_stands_still_in_a_step_too() -> None:
    """Whoever watches for stalls sees it: a grammar or a command may hang as well as a pass."""
    with running(runner=HangingRunner) as rig:
        assert rig.engine.step_started_s is None
        request = rig.open(spec(5))
        rig.engine.generate(request)
        HangingRunner.is_drawing.wait(10)
        assert rig.engine.step_started_s is not None
        HangingRunner.may_go_on.set()
        rig.wait_for(request, Generated)


def test_an_answer_ends_where_the_fake_is_told_to_but_not_before_min_tokens() -> None:
    with running(FakeOptions(eos_after=4)) as rig:
        for sampling, expected in [
            (Sampling(seed=1, max_tokens=50), {4, 5}),
            (Sampling(seed=1, max_tokens=50, min_tokens=9), {9, 10}),
            (Sampling(seed=1, max_tokens=50, ignore_eos=True), {50}),
        ]:
            request = rig.open(spec(5, sampling))
            rig.engine.generate(request)
            outputs, reason = rig.finish(request)
            assert len(outputs) in expected, "one more where a character was begun"
            assert reason == ("length" if expected == {50} else "stop")

"""A real llama-server shows how far it is with a long prompt."""

import importlib.util

import pytest

from godwit.engines import create_engine, progress
from godwit.engines.llamaserver import BATCH_TOKENS
from godwit.ports import Computed, SequenceSpec
from godwit.types import RequestId, Sampling
from tests.engines.rig import Rig
from tests.engines.servedrig import until

NUM_BATCHES = 3


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_each_batch_of_a_prompt_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.1)
    num_tokens = NUM_BATCHES * BATCH_TOKENS
    engine = create_engine("llama-server", name="smollm2-135m", slots=1, context_tokens=num_tokens + 8)
    rig = Rig(engine)
    seen: set[float] = set()

    def is_computed(request: RequestId) -> bool:
        if (since_s := engine.step_started_s) is not None:
            seen.add(since_s)
        return any(isinstance(event, Computed) for event in rig.events(request))

    try:
        ids = tuple(100 + number % 1000 for number in range(num_tokens))
        request = rig.open(SequenceSpec(ids, (), Sampling(seed=1, max_tokens=1)))
        until(lambda: is_computed(request))
        # The first is when it was asked, and the last batch may end with the answer.
        assert len(seen) >= NUM_BATCHES - 1
        rig.engine.release(request)
    finally:
        rig.engine.close()

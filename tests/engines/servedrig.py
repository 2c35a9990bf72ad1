"""What the tests of an engine over a scripted server share."""

import time
from collections.abc import Callable

from godwit.ports import SequenceSpec
from godwit.types import KvOffer, KvRange, RequestId, Sampling, TokenId
from tests.engines.rig import Rig
from tests.engines.scriptedserver import ScriptedServer
from tests.patience import DEADLINE_S

LENGTH = 8
GREEDY = Sampling(seed=1, max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
PROMPT: tuple[TokenId, ...] = (5, 6, 7, 8, 9)
ALL = KvRange(0, len(PROMPT) - 1)
Make = Callable[..., tuple[ScriptedServer, Rig]]


def opened(rig: Rig, *, output: list[TokenId] | None = None) -> RequestId:
    return rig.open(SequenceSpec(PROMPT, tuple(output or ()), GREEDY))


def awaiting(rig: Rig) -> RequestId:
    """A request that awaits the KV of all tokens but the last."""
    request = rig.name()
    rig.engine.open(request, SequenceSpec(PROMPT, (), GREEDY), KvOffer(ALL, "scripted", 0.0, len(PROMPT)))
    return request


def settle(rig: Rig) -> None:
    """Wait until the engine has done all that it was told before."""
    probe = rig.name()
    rig.engine.open(probe, SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.hold(probe)
    rig.held(probe)
    rig.engine.release(probe)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def kinds(rig: Rig, request: RequestId) -> list[str]:
    return [type(event).__name__ for event in rig.events(request)]

"""Random commands in random order, at random moments: what an engine over a server says is always whole."""

import random
import time

import pytest

from godwit.engines.served import ServedEngine
from godwit.ports import Ended, Failed, Generated, KvImported, SequenceSpec
from godwit.types import KvOffer, KvRange, RequestId
from tests.engines.rig import Rig
from tests.engines.scriptedserver import ScriptedServer, packed
from tests.engines.servedrig import GREEDY, LENGTH, PROMPT, settle, until

NUM_REQUESTS = 15
COMMANDS = ("append", "generate", "hold", "hold_at", "pace", "import", "stop", "export", "wait")


class Life:
    """One request from `open` to `release`, which knows `whole` before it is drawn."""

    def __init__(self, rig: Rig, rng: random.Random, request: RequestId, whole: list[int]) -> None:
        self.rig, self.rng, self.request, self.whole = rig, rng, request, whole
        self.num_known = rng.randrange(0, LENGTH - 2)
        self.num_before = len(rig.events(request))
        self.is_generating = False
        self.is_awaiting = rng.random() < 0.5
        self.commands: list[str] = []
        num_tokens = len(PROMPT) + self.num_known
        self.last = num_tokens - 1
        cut = rng.randrange(1, self.last)
        self.blocks = [KvRange(0, cut), KvRange(cut, self.last)] if self.is_awaiting else []
        offer = KvOffer(KvRange(0, self.last), "scripted", 0.0, num_tokens) if self.is_awaiting else None
        rig.engine.open(request, SequenceSpec(PROMPT, tuple(whole[: self.num_known]), GREEDY), offer)

    def command(self, what: str) -> None:
        engine, rng = self.rig.engine, self.rng
        self.commands.append(what)
        match what:
            case "append" if not self.is_generating:
                ids = self.whole[self.num_known : self.num_known + rng.randrange(0, 3)]
                engine.append(self.request, ids)
                self.num_known += len(ids)
            case "generate":
                engine.generate(self.request)
                self.is_generating = True
            case "hold":
                engine.hold(self.request)
            case "hold_at":
                engine.hold(self.request, rng.randrange(0, LENGTH + 2))
            case "pace":
                engine.pace(self.request, rng.choice((1.0, 1.5)))
            case "import" if self.blocks:
                kv = self.blocks.pop(0)
                right = packed([*PROMPT, *self.whole][: kv.last])
                engine.import_kv(self.request, kv, right if rng.random() < 0.8 else bytearray(b"wrong"))
            case "stop":
                engine.stop_awaiting(self.request)
            case "export":
                engine.export_kv(self.request, KvRange(0, rng.randrange(1, self.last + 1)))
            case "wait":
                time.sleep(rng.random() * 0.003)

    def end(self) -> None:
        """Let it go on to its end, and look at all that was said."""
        self.rig.engine.stop_awaiting(self.request)
        self.rig.engine.generate(self.request)
        until(lambda: any(isinstance(event, Ended | Failed) for event in self.events))
        assert not any(isinstance(event, Failed) for event in self.events), self.commands
        drawn = [(e.index, e.token.id) for e in self.events if isinstance(e, Generated)]
        assert drawn == list(enumerate(self.whole))[self.num_known :], self.commands
        num_last = sum(isinstance(event, KvImported) and event.is_last for event in self.events)
        assert num_last == self.is_awaiting, self.commands

    @property
    def events(self) -> list[object]:
        return list(self.rig.events(self.request)[self.num_before :])


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_commanded_each_output_comes_once_and_nothing_after_a_release(seed: int) -> None:
    rng = random.Random(seed)
    server = ScriptedServer(
        block_tokens=rng.choice((1, 4)), burst=rng.choice((1, 3)), answer_s=rng.choice((0.0, 0.001))
    )
    rig = Rig(ServedEngine(server, server))
    whole = rig.run(PROMPT, GREEDY)
    for number in range(NUM_REQUESTS):
        life = Life(rig, rng, rng.choice((RequestId("same"), RequestId(f"n{number}"))), whole)
        for _ in range(rng.randrange(0, 8)):
            life.command(rng.choice(COMMANDS))
        if rng.random() < 0.7:
            life.end()
        rig.engine.release(life.request)
        settle(rig)
        num_events = len(life.events)
        settle(rig)
        assert len(life.events) == num_events, life.commands
    assert rig.engine.free_slots == rig.engine.slots
    until(lambda: rig.engine.step_started_s is None)
    rig.engine.close()

"""The faults that tests order do what they say: a test that relies on one proves something."""

import asyncio

import pytest

from godwit.errors import ConfigError
from godwit.protocol.messages import Abandon, KvPart, PeerMessage
from godwit.types import KvRange, MoveId, WorkerId
from godwit.worker.faults import PeerFaults

ME, PEER, OTHER = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
DATA = b"abcd"


def chunk(number: int, move: str = "m") -> KvPart:
    return KvPart(MoveId(move), KvRange(0, 128), number * len(DATA), 100, memoryview(DATA), b"")


class Rig:
    """What was handed on, and by whom."""

    def __init__(self, fault: str) -> None:
        self.delivered: list[tuple[WorkerId, PeerMessage | KvPart]] = []
        self.grew = asyncio.Event()
        self.faults = PeerFaults(ME, self._deliver, fault)

    def _deliver(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        self.delivered.append((peer, message))
        self.grew.set()

    async def has(self, count: int) -> None:
        while len(self.delivered) < count:
            self.grew.clear()
            await asyncio.wait_for(self.grew.wait(), 10.0)


@pytest.mark.parametrize("fault", ["", "w2:corrupt=KvPart", "w1:exit_on=Commit"])
def test_without_a_fault_of_its_own_all_is_handed_on(fault: str) -> None:
    rig = Rig(fault)
    sent: list[PeerMessage | KvPart] = [chunk(0), chunk(1), Abandon(MoveId("m"), "")]
    for message in sent:
        rig.faults.take(PEER, message)
    assert rig.delivered == [(PEER, message) for message in sent]


def test_the_second_chunk_of_each_move_is_lost() -> None:
    rig = Rig("w1:drop=KvPart")
    for number in range(4):
        rig.faults.take(PEER, chunk(number))
        rig.faults.take(PEER, chunk(number, "n"))
    kept = [(number, move) for number in (0, 2, 3) for move in "mn"]
    assert rig.delivered == [(PEER, chunk(number, move)) for number, move in kept]


def test_one_bit_of_a_chunk_is_turned() -> None:
    rig = Rig("w1:corrupt=KvPart")
    rig.faults.take(PEER, chunk(0))
    (_, message) = rig.delivered[0]
    assert isinstance(message, KvPart) and bytes(message.data) == b"`bcd"


def test_a_late_chunk_keeps_its_place_among_the_messages_of_its_link() -> None:
    async def run() -> None:
        rig, abandon = Rig("w1:delay=KvPart:0.05"), Abandon(MoveId("m"), "")
        rig.faults.take(PEER, abandon)
        for message in (chunk(0), abandon, chunk(1), abandon):
            rig.faults.take(PEER, message)
        rig.faults.take(OTHER, abandon)
        assert rig.delivered == [(PEER, abandon), (OTHER, abandon)]
        started_s = asyncio.get_running_loop().time()
        await rig.has(6)
        assert asyncio.get_running_loop().time() - started_s >= 0.04
        assert [message for _, message in rig.delivered[2:]] == [chunk(0), abandon, chunk(1), abandon]
        rig.faults.take(PEER, abandon)
        assert len(rig.delivered) == 7, "nothing waits any more"

    asyncio.run(run())


def test_what_waits_is_lost_with_its_link() -> None:
    async def run() -> None:
        rig = Rig("w1:delay=KvPart:0.02")
        rig.faults.take(PEER, chunk(0))
        rig.faults.gone(PEER)
        rig.faults.take(PEER, chunk(1))
        await rig.has(1)
        assert rig.delivered == [(PEER, chunk(1))]

    asyncio.run(run())


def test_a_fault_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no fault 'lose=KvPart'"):
        Rig("w1:lose=KvPart")

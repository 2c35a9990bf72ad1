"""Peer links: what becomes of messages while there is no link yet."""

import asyncio

import pytest

from godwit.protocol.messages import Abandon, PeerHello, PeerMessage, Relayed
from godwit.types import MoveId, WorkerId
from godwit.worker import peers as peers_module
from godwit.worker.peers import Peers, peer_url

ME, PEER = WorkerId("me"), WorkerId("peer")
NOWHERE = "http://127.0.0.1:9/peer"


@pytest.mark.parametrize(
    ("host", "local_host", "url"),
    [
        ("127.0.0.1", "127.0.0.1", "http://127.0.0.1:7000/peer"),
        ("127.0.0.1", "10.0.0.5", None),
        ("localhost", "fe80::5", None),
        ("0.0.0.0", "10.0.0.5", "http://10.0.0.5:7000/peer"),
        ("::", "fd00::5", "http://[fd00::5]:7000/peer"),
        ("0.0.0.0", None, "http://127.0.0.1:7000/peer"),
        ("worker-5", "10.0.0.5", "http://worker-5:7000/peer"),
    ],
)
def test_where_others_reach_a_worker(host: str, local_host: str | None, url: str | None) -> None:
    assert peer_url("http", host, 7000, local_host) == url


def message(number: int) -> PeerMessage:
    return Abandon(MoveId(f"move-{number}"), "")


class Rig:
    """Peers whose relayed messages and losses are noted."""

    def __init__(self) -> None:
        self.relayed: list[PeerMessage] = []
        self.gone: list[tuple[WorkerId, str]] = []
        self.has_relayed = asyncio.Event()
        self.peers = Peers(
            PeerHello(ME, 1), None, 5.0, self._on_relay, lambda *_: None, lambda *gone: self.gone.append(gone)
        )

    def _on_relay(self, relayed: Relayed) -> None:
        self.relayed.append(relayed.message)
        self.has_relayed.set()


def test_messages_for_a_peer_that_cannot_be_dialled_are_relayed_in_order() -> None:
    async def scenario() -> None:
        rig = Rig()
        sent = [message(n) for n in range(5)]
        for one in sent:
            rig.peers.send(PEER, NOWHERE, one)
        async with asyncio.timeout(10):
            await rig.has_relayed.wait()
        assert rig.relayed == sent
        rig.peers.send(PEER, NOWHERE, message(5))
        assert rig.relayed[-1] == message(5)
        await rig.peers.close()

    asyncio.run(scenario())


def test_too_many_waiting_messages_are_the_loss_of_the_peer_and_not_an_error_of_the_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender is a move's machine in the middle of an engine's step."""
    monkeypatch.setattr(peers_module, "MAX_WAITING", 3)

    async def scenario() -> None:
        rig = Rig()
        for number in range(4):
            rig.peers.send(PEER, NOWHERE, message(number))
        assert rig.gone == []
        await asyncio.sleep(0)
        assert [peer for peer, _ in rig.gone] == [PEER]
        await rig.peers.close()

    asyncio.run(scenario())

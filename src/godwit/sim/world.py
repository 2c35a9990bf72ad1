"""A whole cluster in virtual time: one head, its workers, the links between them, and what befalls them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from godwit.costs.choice import MoveCosts
from godwit.costs.sessions import SessionHazards
from godwit.costs.startup import StartupTimes
from godwit.protocol import wire
from godwit.protocol.entry import MoveRecord
from godwit.protocol.message import Message
from godwit.protocol.messages import KvPart, PeerMessage, Relayed
from godwit.scheduling.view import Hazards
from godwit.sim.draws import Draws
from godwit.sim.engine import Meter
from godwit.sim.head import SimHead
from godwit.sim.host import Host
from godwit.sim.loop import Loop
from godwit.sim.network import HEAD, Link, Network
from godwit.sim.notes import Notes
from godwit.sim.spec import ClusterSpec, Policies, WorkerSpec
from godwit.sim.worker import SimWorker
from godwit.types import ModelName, MoveId, WorkerId

RETRY_S = 0.5


class Life(Struct, frozen=True):
    """How the parts of a world live: seconds until a link is found dead, and how devices are cleaned up.

    `lump_tokens` are drawn at once where nobody looks: 1 is exact, more is quicker.
    """

    dead_after_s: float = 5.0
    cleanup_s: Callable[[], float] = lambda: 0.0
    lump_tokens: int = 1
    kv_scale: float = 1.0


class World:
    """One head and its workers. Everything that happens is an event of `loop`.

    `tell(who, what)` hears of each frame that arrives, `on_record` of each move and failover that is over.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        settings: Policies,
        life: Life,
        draws: Draws,
        draw: Callable[[], float],
        meter: Meter,
        on_record: Callable[[MoveRecord], None],
        notes: Notes,
        tell: Callable[[str, str], None] | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        self.loop = Loop()
        self.workers: dict[WorkerId, SimWorker] = {}
        self.specs: Mapping[WorkerId, WorkerSpec] = {one.name: one for one in cluster.workers}
        self.relayed: set[Link] = set()
        self.num_losses = 0
        self._settings = settings
        self._life = life
        self._draws = draws
        self._draw = draw
        self._meter = meter
        self._on_record = on_record
        self._notes = notes
        self._tell = tell
        self._num_moves = 0
        self._incarnations: dict[WorkerId, int] = {}
        self._is_linked: set[WorkerId] = set()
        self.times = StartupTimes()
        self.costs = MoveCosts()
        self.hazards = SessionHazards(settings.family) if hazards is None else hazards
        models = {model.name: model for model in cluster.models}
        self.hosts = {host.name: Host(host, models, self.loop) for host in cluster.hosts}
        self._models = {
            host.name: [models[one] for one in dict.fromkeys((*host.in_dram, *host.on_ssd))]
            for host in cluster.hosts
        }
        self.network = Network(
            self.loop,
            {one.name: one.link_bytes_per_s for one in cluster.workers},
            {one.name: one.delay_s for one in cluster.workers},
            self._deliver,
        )
        self.head = self._new_head()

    # --- lives ----------------------------------------------------------------------------------------------

    def join(self, name: WorkerId, skew_s: float = 0.0) -> None:
        """Start a worker: a new life, which the head hears of after the link's delay."""
        if name in self.workers and self.workers[name].is_up:
            return
        spec = self.specs[name]
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        self.workers[name] = SimWorker(
            spec,
            self._incarnations[name],
            self.hosts[spec.host],
            self._models[spec.host],
            self.loop,
            self._draws,
            self._meter,
            lambda message: self._to_head(name, message),
            lambda peer, message: self._to_peer(name, peer, message),
            lambda peer: (name, peer) not in self.relayed,
            lambda: self._leaves(name),
            self._life.cleanup_s,
            self._life.lump_tokens,
            skew_s,
        )
        self.loop.after(spec.delay_s, lambda: self.link(name))

    def link(self, name: WorkerId) -> None:
        """Connect a worker to the head, anew if it was connected; what was under way is lost."""
        worker = self.workers[name]
        if not worker.is_up:
            return
        if self.network.is_frozen((name, HEAD)) or self.network.is_frozen((HEAD, name)):
            self.loop.after(RETRY_S, lambda: self._link_again(name))
            return
        self._unlink(name, "replaced by a later link")
        worker.is_linked = True
        hello = wire.decode_from_worker(wire.encode(worker.hello))
        if self.head.may_join(hello):  # type: ignore[arg-type]
            self._is_linked.add(name)
            self.head.joined(hello)  # type: ignore[arg-type]

    def crash(self, name: WorkerId, noticed_after_s: float = 0.0) -> None:
        """Kill a worker: what it has sent arrives, what is sent to it is lost; others notice later."""
        worker = self.workers[name]
        if not worker.is_up:
            return
        worker.catch_up()
        worker.close()
        for other in (HEAD, *self.specs):
            self.network.clear((other, name))
        after_s = noticed_after_s + self.specs[name].delay_s
        incarnation = worker.incarnation

        def noticed() -> None:
            if self.workers[name].incarnation == incarnation:
                self._unlink(name, "its connection was lost")
            self._peer_gone(name)

        self.loop.after(after_s, noticed, priority=1)

    def cut(self, x: WorkerId, y: WorkerId) -> None:
        """Break the link between two; both notice at once, a worker dials its head again."""
        if HEAD in (x, y):
            self._unlink(y if x == HEAD else x, "its connection was lost")
            self.loop.after(RETRY_S, lambda: self._link_again(y if x == HEAD else x))
        else:
            self.network.clear((x, y))
            self.network.clear((y, x))
            for one, other in ((x, y), (y, x)):
                if (worker := self.workers.get(one)) is not None and worker.is_up:
                    worker.requests.peer_gone(other, f"the link to {other} broke")

    def partition(self, name: WorkerId, others: Sequence[WorkerId], seconds: float) -> None:
        """Let nothing through between a worker and others for so long; silence is noticed by its length."""
        for other in others:
            for link in ((name, other), (other, name)):
                self.network.freeze(link)
                self.loop.after(seconds, partial(self.network.thaw, link))
            if seconds > self._life.dead_after_s:
                self.loop.after(self._life.dead_after_s, partial(self._silence, name, other))

    def restart_head(self, down_s: float) -> None:
        """Kill the head, and start another one later, which workers dial again."""
        self.head.stop()
        for name in list(self._is_linked):
            self._unlink(name, "the head is gone")
        self.loop.after(down_s, self._start_head)

    # --- what the links do ----------------------------------------------------------------------------------

    def _new_head(self) -> SimHead:
        return SimHead(
            self._settings,
            self.loop,
            self.times,
            self.costs,
            self.hazards,
            self._notes,
            self._from_head,
            self._new_move,
            self._draw,
            self._on_record,
        )

    def _start_head(self) -> None:
        self.head = self._new_head()
        for name, worker in self.workers.items():
            if worker.is_up:
                self.link(name)

    def _new_move(self) -> MoveId:
        self._num_moves += 1
        return MoveId(f"m{self._num_moves}")

    def _from_head(self, worker: WorkerId, message: Message) -> None:
        if worker in self._is_linked and self.workers[worker].is_up:
            self.network.send(HEAD, worker, wire.encode(message))

    def _to_head(self, worker: WorkerId, message: Message) -> None:
        self.network.send(worker, HEAD, wire.encode(message))

    def _to_peer(self, sender: WorkerId, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        if (sender, peer) in self.relayed:
            assert not isinstance(message, KvPart), "KV goes through the head"
            self._to_head(sender, Relayed(peer, message))
        elif peer in self.workers and self.workers[peer].is_up:
            frame = wire.encode(message)
            scale = self._life.kv_scale if isinstance(message, KvPart) else 1.0
            self.network.send(sender, peer, frame, len(frame) * scale)

    def _deliver(self, sender: WorkerId, receiver: WorkerId, frame: bytes) -> None:
        if self._tell is not None:
            self._tell(receiver, f"<- {sender}: {frame.hex()}")
        if receiver == HEAD:
            self.head.take(sender, wire.decode_from_worker(frame))
            return
        worker = self.workers[receiver]
        if not worker.is_up:
            return
        if sender != HEAD:
            worker.from_peer(sender, wire.decode_from_peer(frame))
        elif worker.is_linked:
            worker.from_head(wire.decode_from_head(frame))

    def _leaves(self, name: WorkerId) -> None:
        """It has been told to leave: its last word is on its way."""
        worker = self.workers[name]
        worker.requests.head_gone()
        worker.close()
        self.loop.after(2 * self.specs[name].delay_s, lambda: self._is_linked.discard(name), priority=1)

    def _unlink(self, name: WorkerId, reason: str) -> None:
        self._is_linked.discard(name)
        self.network.clear((name, HEAD))
        self.network.clear((HEAD, name))
        self.num_losses += self.num_running(name)
        self.head.left(name, reason)
        self.workers[name].head_gone()

    def _link_again(self, name: WorkerId) -> None:
        if not self.workers[name].is_linked:
            self.link(name)

    def _silence(self, name: WorkerId, other: WorkerId) -> None:
        if not self.network.is_frozen((name, other)):
            return
        if other == HEAD:
            self._unlink(name, "it fell silent")
            self._link_again(name)
        else:
            self.cut(name, other)

    def _peer_gone(self, name: WorkerId) -> None:
        for other in self.workers.values():
            if other.is_up and other.name != name and other.requests.num_moves:
                other.requests.peer_gone(name, f"the link to {name} broke")

    def num_running(self, worker: WorkerId) -> int:
        """Requests that run there, as the head knows."""
        return sum(entry.journal.owner == worker for entry in self.head.control.requests)

    def is_loaded(self, worker: WorkerId, model: ModelName) -> bool:
        """Whether an instance is up there."""
        return model in self.workers[worker].instances.drivers

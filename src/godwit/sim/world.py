"""A whole cluster in virtual time: one head, its workers, the links between them, and what befalls them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from godwit.costs.choice import MoveCosts
from godwit.costs.known import Constants
from godwit.costs.sessions import SessionHazards
from godwit.costs.startup import StartupTimes
from godwit.protocol import wire
from godwit.protocol.entry import MoveRecord
from godwit.protocol.head import HeadLimits
from godwit.protocol.message import Message
from godwit.protocol.messages import Alive, Hello, KvPart, Left, PeerMessage, Relayed
from godwit.protocol.model_messages import ModelChanged, ModelRefused, ModelRemoved
from godwit.scheduling.view import Hazards
from godwit.sim.draws import Draws
from godwit.sim.engine import Meter
from godwit.sim.head import UNLIMITED, SimHead
from godwit.sim.host import Host
from godwit.sim.loop import Loop
from godwit.sim.network import HEAD, Link, Network
from godwit.sim.notes import Notes
from godwit.sim.spec import ClusterSpec, Policies, WorkerSpec
from godwit.sim.worker import SimWorker
from godwit.types import MoveId, MoveLimits, WorkerId

RETRY_S = 0.5
_NOT_ABOUT_REQUESTS = (Hello, Alive, Left, Relayed, ModelChanged, ModelRefused, ModelRemoved)


class Watch(Protocol):
    """Who looks on: `arrives` is called before a message is taken, `was_taken` after it, `linked` as a link
    of a worker to the head begins, `says` of all else."""

    def arrives(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None: ...

    def was_taken(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None: ...

    def linked(self, worker: WorkerId) -> None: ...

    def says(self, who: str, what: str) -> None: ...


class Life(Struct, frozen=True):
    """How the parts of a world live: seconds until a link is found dead, and how devices are cleaned up.

    `lump_tokens` are drawn at once where nobody looks: 1 is exact, more is quicker. `limits` are the head's,
    `move_limits` those of its moves, `known` what it knows of their costs. The hosts in `others` have other
    checkpoints under the models' names, which draw something else.
    """

    dead_after_s: float = 5.0
    cleanup_s: Callable[[], float] = lambda: 0.0
    lump_tokens: int = 1
    kv_scale: float = 1.0
    limits: HeadLimits = HeadLimits(max_queued=UNLIMITED, max_running=UNLIMITED)
    move_limits: MoveLimits = MoveLimits()
    known: Constants | None = None
    others: Mapping[str, Draws] = {}


class World:
    """One head and its workers. Everything that happens is an event of `loop`.

    `on_record` hears of each move and failover that is over.
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
        watch: Watch | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        self.loop = Loop()
        self.workers: dict[WorkerId, SimWorker] = {}
        self.specs: Mapping[WorkerId, WorkerSpec] = {one.name: one for one in cluster.workers}
        self.relayed: set[Link] = set()
        self._settings = settings
        self._life = life
        self._draws = draws
        self._draw = draw
        self._meter = meter
        self._on_record = on_record
        self._notes = notes
        self._watch = watch
        self._num_moves = 0
        self._incarnations: dict[WorkerId, int] = {}
        self._is_linked: dict[WorkerId, int] = {}
        self._num_links = 0
        self._former: dict[WorkerId, list[bytes]] = {}
        self.times = StartupTimes()
        self.costs = MoveCosts(life.known)
        self.hazards = SessionHazards(settings.family) if hazards is None else hazards
        models = self._specs_by_model = {model.name: model for model in cluster.models}
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
            self._life.others.get(spec.host, self._draws),
            self._meter,
            lambda message: self._to_head(name, message),
            lambda peer, message: self._to_peer(name, peer, message),
            lambda peer: (name, peer) not in self.relayed,
            lambda: self._leaves(name),
            self._life.cleanup_s,
            self._life.lump_tokens,
            skew_s,
            self._specs_by_model,
            spec.host if spec.host in self._life.others else "",
        )
        self.loop.after(spec.delay_s, lambda: self.link(name))

    def link(self, name: WorkerId) -> None:
        """Connect a worker to the head, anew if it was connected; what was under way is lost."""
        worker = self.workers[name]
        if not worker.is_up:
            return
        is_cut_off = self.network.is_frozen((name, HEAD)) or self.network.is_frozen((HEAD, name))
        if is_cut_off or not self.head.is_up:
            self.loop.after(RETRY_S, lambda: self._link_again(name))
            return
        self._unlink(name, "replaced by a later link")
        worker.is_linked = True
        hello = wire.decode_from_worker(wire.encode(worker.hello))
        assert isinstance(hello, Hello)
        if self.head.may_join(hello):
            self._num_links += 1
            self._is_linked[name] = self._num_links
            if self._watch is not None:
                self._watch.linked(name)
            self.head.joined(hello)

    def crash(self, name: WorkerId, noticed_after_s: float = 0.0) -> None:
        """Kill a worker: what it has sent arrives, what is sent to it is lost; others notice later."""
        worker = self.workers[name]
        if not worker.is_up:
            return
        worker.catch_up()
        worker.close()
        self._say(name, "dies")
        self._end_links(name, noticed_after_s)

    def cut(self, x: WorkerId, y: WorkerId, later_s: float = 0.0, num_kept: int = 0) -> None:
        """Break the link between two: `y` notices `later_s` after `x`. Of what is under way each way, the
        first `num_kept` frames still arrive. A worker dials its head again."""
        self._say(x, f"loses its link to {y}")
        if HEAD in (x, y):
            name = y if x == HEAD else x
            if (number := self._is_linked.get(name)) is None:
                return
            self.network.break_off((HEAD, name), num_kept)
            self._former[name] = self.network.break_off((name, HEAD), num_kept)
            self._lose_half(x, name, number)
            self.loop.after(later_s, lambda: self._lose_half(y, name, number), priority=1)
        else:
            self.network.break_off((x, y), num_kept)
            self.network.break_off((y, x), num_kept)
            self._lose_peer(x, y)
            self.loop.after(later_s, lambda: self._lose_peer(y, x), priority=1)

    def partition(
        self,
        name: WorkerId,
        others: Sequence[WorkerId],
        seconds: float,
        *,
        one_way: bool = False,
        later_s: float = 0.0,
    ) -> None:
        """Let nothing through between a worker and others (`one_way`: from it) for so long. Silence is
        noticed by its length, by the worker `later_s` after the others."""
        self._say(name, f"is cut off from {', '.join(others)} for {seconds:.2f} s")
        for other in others:
            for link in ((name, other),) if one_way else ((name, other), (other, name)):
                self.network.freeze(link)
                self.loop.after(seconds, partial(self._thaw, link))
            if seconds > self._life.dead_after_s:
                self.loop.after(self._life.dead_after_s, partial(self._silence, name, other, later_s))

    def restart_head(self, down_s: float) -> None:
        """Kill the head, and start another one later, which workers dial again."""
        if not self.head.is_up:
            return
        self.head.stop()
        self._say(HEAD, "dies")
        for name in list(self._is_linked):
            self._unlink(name, "the head is gone")
        self.loop.after(down_s, self._start_head)

    def replay_former(self, name: WorkerId) -> int:
        """Give the head what a worker's former link had still carried about requests, as if it had come by
        the present one; how many messages. What it says of models is fenced by no epoch."""
        num_replayed = 0
        for frame in self._former.pop(name, []):
            message = wire.decode_from_worker(frame)
            if name in self._is_linked and not isinstance(message, _NOT_ABOUT_REQUESTS):
                num_replayed += 1
                self.take(name, HEAD, message)
        return num_replayed

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
            self._life.limits,
            self._life.move_limits,
        )

    def _start_head(self) -> None:
        self._say(HEAD, "starts")
        former, self.head = self.head, self._new_head()
        # As from its store.
        catalog = self.head.control.catalog
        catalog.added.update(former.control.catalog.added)
        catalog.pinned.update(former.control.catalog.pinned)
        self.head.control.restart_scheduler()
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
            heavier = (self._life.kv_scale - 1) * len(message.data) if isinstance(message, KvPart) else 0.0
            self.network.send(sender, peer, frame, len(frame) + heavier)

    def take(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        """Let a message arrive."""
        worker = self.workers.get(receiver)
        if worker is not None and (not worker.is_up or (sender == HEAD and not worker.is_linked)):
            return
        if self._watch is not None:
            self._watch.arrives(sender, receiver, message)
        if worker is None:
            self.head.take(sender, message)  # type: ignore[arg-type]  # decoded as the receiver's
        elif sender == HEAD:
            worker.from_head(message)  # type: ignore[arg-type]  # the same
        else:
            worker.from_peer(sender, message)  # type: ignore[arg-type]  # the same
        if self._watch is not None:
            self._watch.was_taken(sender, receiver, message)

    def _deliver(self, sender: WorkerId, receiver: WorkerId, frame: bytes) -> None:
        if receiver == HEAD:
            message: Message = wire.decode_from_worker(frame)
        else:
            message = wire.decode_from_head(frame) if sender == HEAD else wire.decode_from_peer(frame)
        self.take(sender, receiver, message)

    def _say(self, who: str, what: str) -> None:
        if self._watch is not None:
            self._watch.says(who, what)

    def _leaves(self, name: WorkerId) -> None:
        """It has been told to leave: its last word is on its way."""
        worker = self.workers[name]
        worker.requests.head_gone()
        worker.close()
        self._say(name, "leaves")
        self._end_links(name)

    def _end_links(self, name: WorkerId, noticed_after_s: float = 0.0) -> None:
        """What is sent to a worker is lost; others notice its end when all that it has sent has arrived."""
        number = self._is_linked.get(name)
        noticed_s = self.loop.now_s + noticed_after_s + self.specs[name].delay_s
        for other in (HEAD, *(one for one in self.specs if one != name)):
            self.network.clear((other, name))
            at_s = max(noticed_s, self.network.empty_s((name, other)))
            self.loop.at(at_s, partial(self._end_of, name, other, number), priority=1)

    def _unlink(self, name: WorkerId, reason: str) -> None:
        """Both ends of a worker's link to the head are over."""
        self._head_loses(name, reason)
        self.network.clear((HEAD, name))
        self.workers[name].head_gone()

    def _head_loses(self, name: WorkerId, reason: str) -> None:
        self._is_linked.pop(name, None)
        self._former.setdefault(name, []).extend(self.network.clear((name, HEAD)))
        self.head.left(name, reason)

    def _lose_half(self, who: WorkerId, name: WorkerId, number: int) -> None:
        """One end of a worker's link to the head notices that this link is broken, if it has no later one."""
        if who != HEAD:
            worker = self.workers[name]
            if worker.is_linked and self._is_linked.get(name, number) == number:
                worker.head_gone()
                self.loop.after(RETRY_S, lambda: self._link_again(name))
        elif self._is_linked.get(name) == number:
            self._head_loses(name, "its connection was lost")
            self.network.break_off((name, HEAD))

    def _lose_peer(self, who: WorkerId, other: WorkerId) -> None:
        """One end of a link between workers notices that it is broken; what it sends from now on is new."""
        self.network.clear((who, other))
        if (worker := self.workers.get(who)) is not None and worker.is_up:
            worker.requests.peer_gone(other, f"the link to {other} broke")

    def _end_of(self, name: WorkerId, other: WorkerId, number: int | None) -> None:
        """The other end of a dead worker's link notices that."""
        if other == HEAD:
            if number is not None and self._is_linked.get(name) == number:
                self._head_loses(name, "its connection was lost")
        elif (one := self.workers.get(other)) is not None and one.is_up:
            one.requests.peer_gone(name, f"the link to {name} broke")

    def _link_again(self, name: WorkerId) -> None:
        if not self.workers[name].is_linked:
            self.link(name)

    def _thaw(self, link: Link) -> None:
        self.network.thaw(link)

    def _silence(self, name: WorkerId, other: WorkerId, later_s: float) -> None:
        if self.network.is_frozen((name, other)):
            self.cut(other, name, later_s)

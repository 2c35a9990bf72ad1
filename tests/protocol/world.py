"""A whole cluster in one thread: the real Control, real workers, links whose every frame is the test's."""

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from godwit.costs.choice import MoveCosts
from godwit.costs.constants import Constant
from godwit.costs.known import Constants, PairConstants, ServerConstants
from godwit.costs.startup import StartupTimes
from godwit.protocol import wire
from godwit.protocol.coordinator import CoordinatorState
from godwit.protocol.entry import MoveRecord
from godwit.protocol.head import HeadLimits
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    Alive,
    FromHead,
    Hello,
    KvPart,
    Leave,
    Left,
    PeerHello,
    PeerMessage,
    Relayed,
    Welcome,
)
from godwit.protocol.model_messages import AddModel, Load, RemoveModel, Unload
from godwit.protocol.words import describe
from godwit.scheduling.control import Control
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.policies import availability
from godwit.scheduling.recorder import Recorder, Stays
from godwit.scheduling.scheduler import Scheduler
from godwit.scheduling.wishes import Outcome
from godwit.types import (
    ModelInfo,
    ModelName,
    MoveId,
    MoveLimits,
    Prompt,
    RequestId,
    Sampling,
    TokenPrompt,
    WorkerId,
)
from tests.protocol.client import Client
from tests.protocol.engine import unmoved_run
from tests.protocol.node import Node

HEAD = WorkerId("head")
MODEL = ModelName("m")
NUM_PROMPT = 7
PREPARE_TIMEOUT_S, MOVE_TIMEOUT_S, PLACEMENT_TIMEOUT_S = 10.0, 10.0, 30.0
LIMITS = MoveLimits(timeout_s=MOVE_TIMEOUT_S, patience_rounds=3)
COSTS = Constants(
    PairConstants(Constant(0.0), Constant(1e4)),
    ServerConstants(Constant(100.0), Constant(0.0), kv_bytes_per_token=Constant(100.0)),
)
"""Shipping and computing a token take equally long, so that a split has two halves."""

Link = tuple[WorkerId, WorkerId]
Frame = bytes | None
"""None: the link broke here."""


class World:
    """One head and its workers. Nothing happens but by a call; `now` only moves in `tick`."""

    def __init__(self, max_failovers: int = 20, stays: Stays | None = None) -> None:
        self.now = 100.0
        self.tell: Callable[[str, str], None] = lambda _who, _what: None
        self.actor = ""
        self.nodes: dict[WorkerId, Node] = {}
        self.queues: dict[Link, deque[Frame]] = {}
        self.frozen: set[Link] = set()
        self.delivered: list[tuple[Link, bytes]] = []
        self.relayed: set[Link] = set()
        self.old_frames: dict[WorkerId, list[bytes]] = {}
        self.clients: dict[RequestId, Client] = {}
        self.records: list[MoveRecord] = []
        self.outcomes: list[Outcome] = []
        self._num_moves = 0
        self._incarnation = 0
        self.times = times = StartupTimes()
        self.control = Control(
            send=self._send_worker,
            wake=lambda: None,
            new_move=self._new_move,
            new_scheduler=lambda: Scheduler(availability, times),
            limits=HeadLimits(max_failovers=max_failovers, prepare_timeout_s=PREPARE_TIMEOUT_S),
            move_limits=LIMITS,
            placement_timeout_s=PLACEMENT_TIMEOUT_S,
            policy="availability",
            recorder=Recorder(times, EventLog(100), lambda: self.now, stays=stays),
            on_record=self.records.append,
            now=lambda: self.now,
            costs=MoveCosts(COSTS),
        )

    # --- workers and links ----------------------------------------------------------------------------------

    def join(self, name: str, *, slots: int = 2, is_loaded: bool = True, digest: str = "weights") -> None:
        """Start a worker (a new life, if it had one) and connect it."""
        worker = WorkerId(name)
        self._incarnation += 1
        info = ModelInfo(MODEL, digest, 10_000, 10, is_loaded, False)
        hello = Hello(worker, self._incarnation, slots, 100, (info,), f"http://{name}/peer")
        self.nodes[worker] = Node(
            hello,
            lambda message: self._send_head(worker, message),
            lambda peer, message: self._send_peer(worker, peer, message),
            lambda peer: (worker, peer) not in self.relayed,
            lambda: self.now,
        )
        self.link(name)

    def link(self, name: str) -> None:
        """Connect a worker to the head, anew if it was connected; what was under way is lost."""
        worker = WorkerId(name)
        node = self.nodes[worker]
        if node.is_linked:
            node.requests.head_gone()
        self.control.gone(worker, "replaced by a later link")
        self.queue(worker, HEAD).clear()
        self.queue(HEAD, worker).clear()
        self.frozen -= {(worker, HEAD), (HEAD, worker)}
        node.is_linked = True
        self.delivered = [one for one in self.delivered if one[0] != (HEAD, worker)]
        hello = wire.decode_from_worker(wire.encode(replace(node.hello, models=node.models)))
        assert isinstance(hello, Hello)
        self.control.joined(hello)

    def crash(self, name: str) -> None:
        """Kill a worker; what it had sent is still on its way, and the losses are found after that."""
        worker = WorkerId(name)
        self.nodes[worker].is_up = False
        for link, queue in self.queues.items():
            if link[1] == worker:
                queue.clear()
        for other in (HEAD, *self.nodes):
            if other != worker:
                self.queue(worker, other).append(None)

    def cut(self, x: str, y: str, num_kept: int = 0) -> None:
        """Break the link between two: each way, the first `num_kept` frames still arrive."""
        for link in ((WorkerId(x), WorkerId(y)), (WorkerId(y), WorkerId(x))):
            queue = self.queue(*link)
            kept = list(queue)[:num_kept]
            queue.clear()
            queue.extend([*kept, None])

    def freeze(self, x: str, y: str) -> None:
        """Let nothing through between two until `thaw`."""
        self.frozen |= {(WorkerId(x), WorkerId(y)), (WorkerId(y), WorkerId(x))}

    def hold_back(self, sender: str, receiver: str) -> None:
        """Let nothing through from one to the other until `let_go` or `thaw`."""
        self.frozen.add((WorkerId(sender), WorkerId(receiver)))

    def let_go(self, sender: str, receiver: str) -> None:
        """End a `hold_back`."""
        self.frozen.discard((WorkerId(sender), WorkerId(receiver)))

    def thaw(self) -> None:
        """End all partitions."""
        self.frozen.clear()

    def head_loses(self, name: str) -> None:
        """The head gives a silent worker up; frames from it are kept for `replay_old`."""
        self._say(HEAD, f"gives {name} up")
        worker = WorkerId(name)
        queue = self.queue(worker, HEAD)
        self.old_frames.setdefault(worker, []).extend(frame for frame in queue if frame is not None)
        queue.clear()
        self.queue(HEAD, worker).clear()
        self.control.gone(worker, "it fell silent")
        self._flush()

    def worker_loses_head(self, name: str) -> None:
        """The worker finds its link to the head dead."""
        self._say(name, "gives its head up")
        node = self.nodes[WorkerId(name)]
        if node.is_linked:
            node.is_linked = False
            node.requests.head_gone()

    def replay_old(self, name: str) -> None:
        """Give the head what an earlier link of the worker had still carried, as if it were new."""
        for frame in self.old_frames.pop(WorkerId(name), []):
            message = wire.decode_from_worker(frame)
            if WorkerId(name) in self.control.members and not isinstance(
                message, Hello | Alive | Left | Relayed
            ):
                self._say(HEAD, f"<- {name}, from before: {describe(message)}")
                self.control.on_worker(WorkerId(name), message)
                self._flush()

    # --- requests -------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        max_tokens: int = 20,
        seed: int = 1,
        prompt: Prompt | None = None,
        *,
        ignore_eos: bool = False,
    ) -> Client:
        """A client asks for up to `max_tokens` tokens."""
        request = RequestId(name)
        sampling = Sampling(seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
        prompt = prompt or TokenPrompt(tuple(range(1, NUM_PROMPT + 1)))
        assert isinstance(prompt, TokenPrompt)
        client = Client(
            request, *unmoved_run(prompt.ids, sampling), lambda what: self.tell(f"client {name}", what)
        )
        self.clients[request] = client
        self.control.start(request, MODEL, prompt, sampling, client)
        return client

    def cancel(self, name: str) -> None:
        """A client leaves."""
        client = self.clients[RequestId(name)]
        self.control.cancel(client.request)
        if client.outcome is None:
            client.outcome = "cancelled"

    def move(self, name: str, to: str | None, limits: MoveLimits = LIMITS, method: str = "tokens") -> None:
        """Somebody asks for a move."""
        destination = None if to is None else WorkerId(to)
        self.control.ask_move(RequestId(name), destination, limits, self.outcomes.append, method)

    def owner(self, name: str) -> str | None:
        """Who owns a request; None where nobody does, or it is over."""
        entry = self.control.requests.get(RequestId(name))
        return None if entry is None else entry.journal.owner

    def coordinator(self, name: str) -> CoordinatorState | None:
        """The state of a request's move at the head; None where it has none."""
        entry = self.control.requests.get(RequestId(name))
        return None if entry is None or entry.moving is None else entry.moving.machine.state

    # --- one thing at a time --------------------------------------------------------------------------------

    def queue(self, sender: WorkerId, receiver: WorkerId) -> deque[Frame]:
        """The frames on their way from one to the other, oldest first."""
        return self.queues.setdefault((sender, receiver), deque())

    def ready(self) -> list[Link]:
        """Links that have a frame to deliver."""
        return [link for link, queue in self.queues.items() if queue and link not in self.frozen]

    def deliver(self, sender: str, receiver: str) -> None:
        """Hand over the oldest frame of a link."""
        link = WorkerId(sender), WorkerId(receiver)
        frame = self.queue(*link).popleft()
        if frame is None:
            self._say(receiver, f"lost its link to {sender}")
            self._lost(*link)
        else:
            self.deliver_frame(link, frame)
        self._flush()

    def deliver_frame(self, link: Link, frame: bytes) -> None:
        """Hand over a frame, be it the oldest or not."""
        sender, receiver = link
        self.delivered.append((link, frame))
        if receiver == HEAD:
            self._to_head(sender, frame)
            return
        node = self.nodes[receiver]
        if not node.is_up:
            return
        if sender != HEAD:
            message = wire.decode_from_peer(frame)
            assert not isinstance(message, PeerHello)
            self._say(receiver, f"<- {sender}: {describe(message)}")
            node.requests.on_peer(sender, message)
        elif node.is_linked:
            self._from_head(node, wire.decode_from_head(frame))

    def step(self, name: str) -> None:
        """Let a worker's engines step, and the worker hear of it."""
        node = self.nodes[WorkerId(name)]
        if node.is_up:
            self.actor = name
            node.step()
            node.take_report()

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for node in self.nodes.values():
            if node.is_up and node.is_linked:
                self.actor = node.name
                node.requests.tick(self.now)
        self.actor = HEAD
        self.control.tick()
        self._flush()

    def deliver_all(self) -> None:
        """Deliver until nothing is on its way, link by link in the order of their first use."""
        for _ in range(10_000):
            ready = self.ready()
            if not ready:
                return
            self.deliver(*ready[0])
        raise AssertionError("the messages do not end")

    def run(self, rounds: int = 1) -> None:
        """Let all go on as they do when nothing is wrong: deliver, load, step, deliver."""
        for _ in range(rounds):
            self.deliver_all()
            for node in self.nodes.values():
                self.actor = node.name
                if node.is_up:
                    for model in list(node.instances.loading):
                        node.instances.finish_load(model)
                    node.step()
                while node.is_up and node.has_reports:
                    node.take_report()
            self.deliver_all()

    # --- what the links do ----------------------------------------------------------------------------------

    def _new_move(self) -> MoveId:
        self._num_moves += 1
        return MoveId(f"m{self._num_moves}")

    def _send_worker(self, worker: WorkerId, message: Message) -> None:
        if worker in self.control.members and self.nodes[worker].is_up:
            self.queue(HEAD, worker).append(wire.encode(message))

    def _send_head(self, worker: WorkerId, message: Message) -> None:
        if self.nodes[worker].is_linked:
            self.queue(worker, HEAD).append(wire.encode(message))

    def _send_peer(self, sender: WorkerId, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        if (sender, peer) in self.relayed:
            assert not isinstance(message, KvPart), "KV goes through the head"
            self._send_head(sender, Relayed(peer, message))
        elif peer in self.nodes and self.nodes[peer].is_up:
            self.queue(sender, peer).append(wire.encode(message))

    def _lost(self, sender: WorkerId, receiver: WorkerId) -> None:
        if receiver == HEAD:
            self.control.gone(sender, "its connection was lost")
        elif sender == HEAD:
            self.worker_loses_head(receiver)
        elif self.nodes[receiver].is_up:
            self.nodes[receiver].requests.peer_gone(sender, f"the link to {sender} broke")

    def _to_head(self, sender: WorkerId, frame: bytes) -> None:
        message = wire.decode_from_worker(frame)
        if sender not in self.control.members:
            return
        self._say(HEAD, f"<- {sender}: {describe(message)}")
        match message:
            case Relayed():
                self._send_worker(message.peer, Relayed(sender, message.message))
            case Left():
                self.control.gone(sender, "left on purpose")
            case Hello() | Alive():
                raise AssertionError("the world sends none")
            case _:
                self.control.on_worker(sender, message)

    def _from_head(self, node: Node, message: FromHead) -> None:
        self._say(node.name, f"<- head: {describe(message)}")
        match message:
            case Load():
                node.instances.load(message.model, lambda _: None)
            case Unload():
                node.instances.unload(message.model)
            case Relayed():
                node.requests.on_peer(message.peer, message.message)
            case Leave():
                self._send_head(node.name, Left())
                node.requests.head_gone()
                node.is_up = node.is_linked = False
            case Welcome() | AddModel() | RemoveModel():
                raise AssertionError("the world sends none")
            case _:
                node.requests.on_head(message)

    def _say(self, who: str, what: str) -> None:
        self.actor = who
        self.tell(who, what)

    def _flush(self) -> None:
        self.control.requests.flush()


def decode(link: Link, frame: bytes) -> Message:
    """The message in a frame, as the link's receiver reads it."""
    if link[1] == HEAD:
        return wire.decode_from_worker(frame)
    return wire.decode_from_head(frame) if link[0] == HEAD else wire.decode_from_peer(frame)

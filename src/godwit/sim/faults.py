"""What may befall a simulated cluster: faults, operators' wishes, clients that leave. Each does one thing.

Links keep their order or break, and so do these, except for four that no real link does: a message between
workers is lost or overtaken, one that names a move or an epoch comes twice, or a byte of KV changes. The
protocol promises to survive those as well.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from godwit.config import ModelSettings
from godwit.errors import GodwitError
from godwit.protocol import wire
from godwit.protocol.message import Message
from godwit.protocol.messages import KvPart, Leave, Left
from godwit.protocol.model_messages import (
    AddModel,
    Load,
    ModelChanged,
    ModelRefused,
    ModelRemoved,
    RemoveModel,
    Unload,
)
from godwit.sim.network import HEAD, Link
from godwit.sim.situation import EXTRA, Fault
from godwit.sim.worker import SimWorker
from godwit.sim.world import World
from godwit.types import ModelName, RequestId, WorkerId

T = TypeVar("T")
NUM_DELIVERED = 40
PATIENCE_S = 1.0
"""What was to come after a message that does not come comes by itself then."""
NUM_LOOKS, LOOK_S = 200, 0.01
"""How long something waits for KV to travel."""
EXTRA_SETTINGS = ModelSettings(name=EXTRA, path="x.gguf")
STATE_MESSAGES = (AddModel, Leave, Left, Load, ModelChanged, ModelRefused, ModelRemoved, RemoveModel, Unload)
"""They name no move or epoch, so that they must not be taken twice; no real link does that."""
WEIGHTS = {
    "move": 2,
    "cancel": 1,
    "drain": 2,
    "pin": 1,
    "add_model": 2,
    "remove_model": 2,
    "join": 3,
    "crash": 3,
    "restart_head": 1,
    "restart_scheduler": 2,
    "cut_head": 2,
    "cut_peer": 2,
    "link": 1,
    "partition": 3,
    "one_way": 2,
    "delay": 2,
    "slow_disk": 2,
    "fail_load": 2,
    "fail_engine": 1,
    "fail_sequence": 2,
    "replay": 2,
    "drop": 2,
    "overtake": 2,
    "duplicate": 4,
    "corrupt": 2,
    "whim": 1,
}


class Faults:
    """Carries out the faults of a situation. `counts` says how often each kind did something."""

    def __init__(
        self,
        world: World,
        faults: Sequence[Fault],
        requests: Callable[[], list[RequestId]],
        leave: Callable[[RequestId], None],
        say: Callable[[str, str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._requests = requests
        self._leave = leave
        self._say = say
        self._armed: list[Fault] = []
        self._focus: tuple[WorkerId, ...] = ()
        self._delivered: deque[tuple[WorkerId, WorkerId, Message]] = deque(maxlen=NUM_DELIVERED)
        self._is_over = False
        for fault in faults:
            world.loop.at(fault.at_s, partial(self._due, fault))

    def was_taken(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        """Something has arrived: the faults that wait for it are due."""
        if self._is_over:
            return
        self._delivered.append((sender, receiver, message))
        name = type(message).__name__
        for fault in [fault for fault in self._armed if fault.on == name]:
            self._armed.remove(fault)
            focus = tuple(one for one in (sender, receiver) if one != HEAD)
            self._world.loop.after(fault.later_s, partial(self._do, fault, focus))

    def linked(self, worker: WorkerId) -> None:
        """A worker has a new link: what came by the former one is not repeated on it."""
        kept = [one for one in self._delivered if one[:2] != (HEAD, worker)]
        self._delivered.clear()
        self._delivered.extend(kept)

    def end(self) -> None:
        """No more faults; those that last end."""
        self._is_over = True
        network = self._world.network
        for link in network.links:
            network.delay(link, 0.0)
            network.thaw(link)
        for host in self._world.hosts.values():
            host.slowdown = 1.0

    def _due(self, fault: Fault) -> None:
        if not fault.on:
            self._do(fault, ())
        elif not self._is_over:
            self._armed.append(fault)
            self._world.loop.after(PATIENCE_S, lambda: self._overdue(fault))

    def _overdue(self, fault: Fault) -> None:
        if fault in self._armed:
            self._armed.remove(fault)
            self._do(fault, ())

    def _do(self, fault: Fault, focus: tuple[WorkerId, ...]) -> None:
        if self._is_over:
            return
        self._focus = focus
        self._say("!", f"{fault.kind} {fault.x} {fault.y}" + (f" after {fault.on}" if fault.on else ""))
        if getattr(self, f"_{fault.kind}")(fault.x, fault.y) is not False:
            self.counts[fault.kind] += 1

    # --- operators and clients ------------------------------------------------------------------------------

    def _move(self, x: int, y: int) -> bool:
        control = self._world.head.control
        if (request := pick(self._requests(), x)) is None:
            return False
        to = pick([None, *self._world.specs], y)
        if to is not None and to not in control.members:
            to = None
        limits = replace(control.move_limits, live=y % 5 > 0)
        control.ask_move(request, to, limits, lambda _: None, ("tokens", "kv", "split")[x // 8 % 3])
        return True

    def _cancel(self, x: int, _: int) -> bool:
        if (request := pick(self._requests(), x)) is None:
            return False
        self._leave(request)
        return True

    def _drain(self, x: int, y: int) -> bool:
        control = self._world.head.control
        if (name := pick(sorted(control.members), x)) is None:
            return False
        control.ask_drain(name, pick([None, 0.0, 0.5, 2.0], y))
        return True

    def _pin(self, x: int, y: int) -> bool:
        control = self._world.head.control
        model = pick(sorted(info.name for info in control.models()), x)
        return model is not None and self._ordered(lambda: control.pin(model, y % 2 == 0))

    def _add_model(self, _x: int, _y: int) -> bool:
        return self._ordered(lambda: self._world.head.control.add_model(EXTRA_SETTINGS, lambda _: None))

    def _remove_model(self, _x: int, _y: int) -> bool:
        return self._ordered(lambda: self._world.head.control.remove_model(EXTRA, lambda _: None))

    def _ordered(self, order: Callable[[], None]) -> bool:
        """Do what an operator wants; False where the head refuses."""
        if not self._world.head.is_up:
            return False
        try:
            order()
        except GodwitError:
            return False
        return True

    # --- processes ------------------------------------------------------------------------------------------

    def _join(self, x: int, y: int) -> bool:
        down = [name for name in self._world.specs if name not in [one.name for one in self._up()]]
        if (name := pick(down, x)) is None:
            return False
        self._world.join(name, pick([0.0, 5.0, -5.0, 1e4, -1e4], y) or 0.0)
        return True

    def _crash(self, x: int, y: int) -> bool:
        if (worker := self._worker(x)) is None:
            return False
        self._world.crash(worker.name, pick([0.0, 0.0, 0.3, 1.0], y) or 0.0)
        return True

    def _restart_head(self, _: int, y: int) -> bool:
        if not self._world.head.is_up:
            return False
        self._world.restart_head(pick([0.0, 0.1, 1.0], y) or 0.0)
        return True

    def _restart_scheduler(self, _x: int, _y: int) -> bool:
        if not self._world.head.is_up:
            return False
        self._world.head.control.restart_scheduler()
        return True

    # --- links ----------------------------------------------------------------------------------------------

    def _cut_head(self, x: int, y: int) -> bool:
        if (worker := self._worker(x)) is None:
            return False
        ends = (HEAD, worker.name) if y % 2 else (worker.name, HEAD)
        self._world.cut(*ends, later_s=(0.0, 0.05, 0.4, 1.0)[y // 2 % 4], num_kept=y // 8 % 3)
        return True

    def _cut_peer(self, x: int, y: int) -> bool:
        worker, other = self._worker(x), pick(list(self._world.workers), y)
        if worker is None or other is None or other == worker.name:
            return False
        self._world.cut(worker.name, other, later_s=(0.0, 0.05, 0.4)[y % 3], num_kept=x % 3)
        return True

    def _link(self, x: int, _: int) -> bool:
        if (worker := self._worker(x)) is None or not self._world.head.is_up:
            return False
        self._world.link(worker.name)
        return True

    def _partition(self, x: int, y: int) -> bool:
        return self._part(x, y, one_way=False)

    def _one_way(self, x: int, y: int) -> bool:
        return self._part(x, y, one_way=True)

    def _part(self, x: int, y: int, *, one_way: bool) -> bool:
        if (worker := self._worker(x)) is None:
            return False
        peers = [name for name in self._world.specs if name != worker.name]
        others = ([HEAD], peers, [HEAD, *peers])[y % 3]
        seconds = (0.05, 0.3, 0.8, 1.5, 3.0)[y // 3 % 5]
        self._world.partition(
            worker.name, others, seconds, one_way=one_way, later_s=(0.0, 0.3, 1.0)[y // 15 % 3]
        )
        return True

    def _delay(self, x: int, y: int) -> bool:
        network, links = self._world.network, self._world.network.links
        if (link := pick(links, x)) is None:
            return False
        network.delay(link, (0.02, 0.1, 0.5, 1.2)[y % 4])
        self._world.loop.after((0.3, 2.0)[y // 4 % 2], lambda: network.delay(link, 0.0))
        return True

    def _replay(self, _x: int, _y: int) -> bool:
        """A worker's next link has what its former one had still carried."""
        return sum(self._world.replay_former(name) for name in list(self._world.workers)) > 0

    # --- what no real link does -----------------------------------------------------------------------------

    def _drop(self, x: int, y: int) -> bool:
        if (link := pick(self._peer_links(), x)) is None:
            return False
        self._world.network.drop(link, y % self._world.network.num_under_way(link))
        return True

    def _overtake(self, x: int, y: int) -> bool:
        if (link := pick(self._peer_links(), x)) is None:
            return False
        self._world.network.overtake(link, y % self._world.network.num_under_way(link))
        return True

    def _duplicate(self, x: int, _: int) -> bool:
        found = pick(self._delivered, x)
        if found is None or isinstance(found[2], STATE_MESSAGES):
            return False
        self._world.take(*found)
        return True

    def _corrupt(self, x: int, y: int) -> bool:
        """Change a byte of the next KV that travels. A real link does that once in a very long time."""
        self._look_for_kv(x * 60 + y, NUM_LOOKS)
        return False

    def _look_for_kv(self, place: int, num_looks: int) -> None:
        if self._change_kv(place):
            self.counts["corrupt"] += 1
        elif num_looks and not self._is_over:
            self._world.loop.after(LOOK_S, partial(self._look_for_kv, place, num_looks - 1))

    def _change_kv(self, place: int) -> bool:
        network = self._world.network
        for link in self._peer_links():
            for index, frame in enumerate(network.under_way(link)):
                part = wire.decode_from_peer(frame)
                if isinstance(part, KvPart):
                    data = bytearray(part.data)
                    data[place % len(data)] ^= 1
                    network.change(link, index, wire.encode(replace(part, data=data)))
                    return True
        return False

    # --- disks and engines ----------------------------------------------------------------------------------

    def _slow_disk(self, x: int, y: int) -> bool:
        host = pick(list(self._world.hosts.values()), x)
        assert host is not None
        host.slowdown = (0.1, 3.0, 20.0)[y % 3]
        return True

    def _fail_load(self, x: int, _: int) -> bool:
        loading = [worker for worker in self._up() if worker.instances.loading]
        if (worker := pick(loading, x)) is None:
            return False
        worker.instances.fail_loads("no such file")
        return True

    def _fail_engine(self, x: int, y: int) -> bool:
        worker = self._worker(x)
        if worker is None or (model := self._model(worker, y)) is None:
            return False
        worker.break_engine(model)
        return True

    def _fail_sequence(self, x: int, y: int) -> bool:
        worker = self._worker(x)
        if worker is None or (model := self._model(worker, y)) is None:
            return False
        driver = worker.instances.drivers[model]
        if (sequence := pick(driver.engine.sequences, y)) is None:
            return False
        driver.fail(sequence)
        return True

    def _whim(self, x: int, y: int) -> bool:
        """A worker loads or unloads a model by itself."""
        if (worker := self._worker(x)) is None:
            return False
        model = pick([info.name for info in worker.instances.infos], y)
        if model is None:
            return False
        if y // 8 % 2:
            worker.instances.unload(model)
        else:
            worker.instances.load(model, lambda _: None)
        return True

    # --- help -----------------------------------------------------------------------------------------------

    def _up(self) -> list[SimWorker]:
        return [worker for worker in self._world.workers.values() if worker.is_up]

    def _worker(self, x: int) -> SimWorker | None:
        """One that is up; of those that the message was about which this came after, if there are any."""
        up = self._up()
        return pick([worker for worker in up if worker.name in self._focus] or up, x)

    def _model(self, worker: SimWorker, y: int) -> ModelName | None:
        return pick(list(worker.instances.drivers), y)

    def _peer_links(self) -> list[Link]:
        network = self._world.network
        return [link for link in network.links if HEAD not in link and network.num_under_way(link)]


def pick(options: Sequence[T], number: int) -> T | None:
    """One of the options, None where there is none."""
    return options[number % len(options)] if options else None

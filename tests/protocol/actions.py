"""What can happen in the world, each chosen by two numbers, so that a schedule can be shortened."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from godwit.protocol.messages import Commit, Leave, Left
from godwit.protocol.model_messages import Load, ModelChanged, Unload
from godwit.types import RequestId, TokenPrompt
from tests.protocol.node import Node
from tests.protocol.world import HEAD, LIMITS, Link, World, decode

T = TypeVar("T")
Action = Callable[["Actions", int, int], None]

NAMES = ["a", "b", "c"]
MAX_TOKENS = 40
MAX_RUSH = 20
_STATE_MESSAGES = (Leave, Left, Load, ModelChanged, Unload)
"""They name no move or epoch, so that they must not be handled twice; no real link does that."""


class Actions:
    """A world with two requests on the way, and everything that a schedule may do to it."""

    def __init__(self) -> None:
        self.world = World()
        self.num_started = 0
        for name in NAMES[:2]:
            self.world.join(name)
        for seed in (0, 3):
            self.start(MAX_TOKENS, seed)
        self.world.run(2)

    # --- normal life ----------------------------------------------------------------------------------------

    def nothing(self, x: int, y: int) -> None:
        """Time for something else to come first."""

    def start(self, x: int, y: int) -> None:
        self.num_started += 1
        self.world.start(f"r{self.num_started}", 1 + x % MAX_TOKENS, seed=y % 12)

    def move(self, x: int, y: int) -> None:
        if request := self._request(x):
            to = pick([None, *NAMES], y)
            limits = replace(LIMITS, live=y % 5 > 0)
            self.world.move(request, to, limits, ("tokens", "kv", "split")[x % 3])

    def start_long(self, x: int, y: int) -> None:
        """One that lives long enough to be moved by its KV."""
        self.num_started += 1
        prompt = TokenPrompt(tuple(range(1, 2 + 25 * (x % 4))))
        self.world.start(f"r{self.num_started}", 150, y % 12, prompt, ignore_eos=True)

    def move_kv(self, x: int, y: int) -> None:
        if request := self._request(x):
            limits = replace(LIMITS, live=y % 3 > 0)
            self.world.move(request, pick([None, *NAMES], y), limits, ("kv", "split")[x // 8 % 2])

    def cancel(self, x: int, _: int) -> None:
        if request := self._request(x):
            self.world.cancel(request)

    def drain(self, x: int, y: int) -> None:
        if name := pick(sorted(self.world.control.members), x):
            self.world.control.ask_drain(name, pick([None, 0.0, 2.0], y))

    def join(self, x: int, y: int) -> None:
        name = NAMES[x % len(NAMES)]
        if name not in [node.name for node in self._up()]:
            digest = "weights" if y % 5 else "other weights"
            self.world.join(name, slots=1 + y % 3, is_loaded=y % 7 > 1, digest=digest)

    def step(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            node.step()

    def report(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            node.take_report()

    def deliver(self, x: int, _: int) -> None:
        if link := pick(self.world.ready(), x):
            self.world.deliver(*link)

    def deliver_all(self, _x: int, _y: int) -> None:
        self.world.deliver_all()

    def run(self, _x: int, _y: int) -> None:
        self.world.run()

    def rush(self, _x: int, _y: int) -> None:
        """Go on until a Commit is on its way: what comes next hits the handover."""
        for _ in range(MAX_RUSH):
            for node in self._up():
                node.step()
                node.take_report()
            for link in self.world.ready():
                while link in self.world.ready():
                    if any(isinstance(message, Commit) for message in self._under_way()):
                        return
                    self.world.deliver(*link)

    def tick(self, x: int, _: int) -> None:
        self.world.tick([0.5, 0.5, 3.0, 11.0][x % 4])

    # --- faults ---------------------------------------------------------------------------------------------

    def crash(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            self.world.crash(node.name)

    def cut(self, x: int, y: int) -> None:
        node, other = pick(self._up(), x), pick([HEAD, *self.world.nodes], y // 4)
        if node is not None and other is not None and node.name != other:
            self.world.cut(node.name, other, num_kept=y % 4)

    def link(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            self.world.link(node.name)

    def freeze(self, x: int, y: int) -> None:
        if node := pick(self._up(), x):
            for other in [HEAD, *(self.world.nodes if y % 2 else [])]:
                if other != node.name:
                    self.world.freeze(node.name, other)

    def hold_back(self, x: int, _: int) -> None:
        if link := pick(list(self.world.queues), x):
            self.world.hold_back(*link)

    def thaw(self, _x: int, _y: int) -> None:
        self.world.thaw()

    def give_up(self, x: int, y: int) -> None:
        node = pick(self._up(), x)
        if node is not None and (node.name, HEAD) in self.world.frozen:
            (self.world.head_loses if y % 2 else self.world.worker_loses_head)(node.name)

    def replay_old(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            self.world.replay_old(node.name)

    def restart_scheduler(self, _x: int, _y: int) -> None:
        self.world.control.restart_scheduler()

    def fail_sequence(self, x: int, y: int) -> None:
        if node := pick(self._up(), x):
            for engine in node.instances.engines.values():
                if sequence := pick(sorted(engine.sequences), y):
                    engine.fail(sequence)

    def fail_engine(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            for engine in node.instances.engines.values():
                engine.fail(None)

    def fail_load(self, x: int, _: int) -> None:
        if node := pick(self._up(), x):
            for model in list(node.instances.loading):
                node.instances.finish_load(model, "no such file")

    # --- what no real link does -----------------------------------------------------------------------------

    def lose(self, x: int, y: int) -> None:
        if link := pick(self._peer_links(), x):
            queue = self.world.queue(*link)
            del queue[y % len(queue)]

    def overtake(self, x: int, y: int) -> None:
        if link := pick(self._peer_links(), x):
            queue = self.world.queue(*link)
            queue.insert(y % len(queue), queue.popleft())

    def repeat(self, x: int, _: int) -> None:
        found = pick(self.world.delivered[-40:], x)
        if found is not None and not isinstance(decode(*found), _STATE_MESSAGES):
            self.world.deliver_frame(*found)
            self.world.control.requests.flush()

    # --- help -----------------------------------------------------------------------------------------------

    def _up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.is_up]

    def _request(self, x: int) -> RequestId | None:
        return pick([entry.request for entry in self.world.control.requests], x)

    def _peer_links(self) -> list[Link]:
        return [link for link, queue in self.world.queues.items() if HEAD not in link and queue]

    def _under_way(self) -> list[object]:
        queues = self.world.queues.items()
        return [decode(link, frame) for link, queue in queues for frame in queue if frame is not None]


def pick(options: list[T], number: int) -> T | None:
    """One of the options, None where there is none."""
    return options[number % len(options)] if options else None


KV: dict[Action, int] = {
    Actions.deliver: 40,
    Actions.step: 14,
    Actions.report: 14,
    Actions.run: 20,
    Actions.move_kv: 5,
    Actions.deliver_all: 6,
    Actions.start_long: 3,
}
NORMAL: dict[Action, int] = {
    Actions.nothing: 1,
    Actions.deliver: 30,
    Actions.step: 12,
    Actions.report: 12,
    Actions.run: 12,
    Actions.move: 8,
    Actions.rush: 6,
    Actions.deliver_all: 4,
    Actions.tick: 3,
    Actions.start: 2,
    Actions.join: 1,
    Actions.cancel: 1,
    Actions.drain: 1,
}
FAULTS: dict[Action, int] = {
    Actions.crash: 1,
    Actions.join: 2,
    Actions.cut: 2,
    Actions.link: 2,
    Actions.freeze: 1,
    Actions.hold_back: 2,
    Actions.thaw: 3,
    Actions.give_up: 2,
    Actions.replay_old: 1,
    Actions.restart_scheduler: 1,
    Actions.fail_sequence: 1,
    Actions.fail_engine: 1,
    Actions.fail_load: 1,
}
UNREAL: dict[Action, int] = {Actions.lose: 3, Actions.overtake: 3, Actions.repeat: 6}

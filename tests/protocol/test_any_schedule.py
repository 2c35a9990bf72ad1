"""Whatever happens in whatever order: the unmoved run's tokens or an explicit error, and nothing leaks."""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from godwit.protocol.messages import Leave, Left, Load, ModelChanged, Rejected, Submit, Unload
from godwit.types import RequestId, WorkerId
from tests.protocol.checks import check_always, check_at_rest, settle
from tests.protocol.node import Node
from tests.protocol.world import HEAD, LIMITS, Link, World, decode

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
_STATE_MESSAGES = (Leave, Left, Load, Unload, ModelChanged)
"""They name no move or epoch, so that they must not be handled twice; no real link does that."""


class AnySchedule(RuleBasedStateMachine):
    """Requests, moves, drains and cancels, among steps and deliveries in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.join("a")
        self.world.join("b")
        self.num_started = 0

    def up(self) -> list[str]:
        return [name for name, node in self.world.nodes.items() if node.is_up]

    def pick_node(self, data: st.DataObject) -> Node:
        return self.world.nodes[WorkerId(data.draw(st.sampled_from(self.up())))]

    def pick_request(self, data: st.DataObject) -> RequestId:
        return data.draw(st.sampled_from([entry.request for entry in self.world.control.requests]))

    def has_requests(self) -> bool:
        return len(self.world.control.requests) > 0

    @rule(max_tokens=st.integers(1, 25), seed=st.integers(0, 5))
    def start(self, max_tokens: int, seed: int) -> None:
        self.num_started += 1
        self.world.start(f"r{self.num_started}", max_tokens, seed)

    @precondition(has_requests)
    @rule(data=st.data(), to=st.sampled_from([None, *NAMES]), live=st.sampled_from([True, True, False]))
    def move(self, data: st.DataObject, to: str | None, live: bool) -> None:
        self.world.move(self.pick_request(data), to, replace(LIMITS, live=live))

    @precondition(has_requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(self.pick_request(data))

    @precondition(lambda self: self.up())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.pick_node(data).step()

    @precondition(lambda self: self.up())
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.pick_node(data).take_report()

    @precondition(lambda self: self.world.ready())
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.world.deliver(*data.draw(st.sampled_from(self.world.ready())))

    @rule()
    def deliver_all(self) -> None:
        self.world.deliver_all()

    @rule(rounds=st.integers(1, 4))
    def run(self, rounds: int) -> None:
        self.world.run(rounds)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @precondition(lambda self: self.world.control.members)
    @rule(data=st.data(), within_s=st.sampled_from([None, 0.0, 2.0]))
    def drain(self, data: st.DataObject, within_s: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.control.members)))
        self.world.control.ask_drain(name, within_s)

    @rule(name=names, slots=st.integers(1, 3), is_loaded=st.booleans(), digest=st.sampled_from("xxy"))
    def join(self, name: str, slots: int, is_loaded: bool, digest: str) -> None:
        if name not in self.up():
            self.world.join(name, slots=slots, is_loaded=is_loaded, digest=digest)

    @invariant()
    def all_is_in_order(self) -> None:
        check_always(self.world)

    def teardown(self) -> None:
        if not self.up():
            self.world.join("z")
        settle(self.world)
        check_at_rest(self.world)


class AnyFault(AnySchedule):
    """The same with crashes, broken links, partitions, failing engines and scheduler restarts."""

    @precondition(lambda self: self.up())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.world.crash(self.pick_node(data).name)

    @rule(x=names, y=st.sampled_from([*NAMES, HEAD]), num_kept=st.integers(0, 2))
    def cut(self, x: str, y: str, num_kept: int) -> None:
        if x != y and all(name in (HEAD, *self.world.nodes) for name in (x, y)):
            self.world.cut(x, y, num_kept)

    @rule(name=names)
    def link(self, name: str) -> None:
        if name in self.up():
            self.world.link(name)

    @rule(name=names, with_peers=st.booleans())
    def freeze(self, name: str, with_peers: bool) -> None:
        for other in [HEAD, *(NAMES if with_peers else [])]:
            if other != name:
                self.world.freeze(name, other)

    @rule()
    def thaw(self) -> None:
        self.world.thaw()

    @precondition(lambda self: self.up())
    @rule(data=st.data(), is_head_first=st.booleans())
    def give_up(self, data: st.DataObject, is_head_first: bool) -> None:
        name = self.pick_node(data).name
        if (name, HEAD) in self.world.frozen:
            lose = self.world.head_loses if is_head_first else self.world.worker_loses_head
            lose(name)

    @rule(name=names)
    def replay_old(self, name: str) -> None:
        self.world.replay_old(name)

    def has_placement_under_way(self) -> bool:
        return any(
            frame is not None and isinstance(decode(link, frame), Submit | Rejected)
            for link, queue in self.world.queues.items()
            if HEAD in link
            for frame in queue
        )

    # A new scheduler forgets a request that is turned away just then: tests/scheduling/test_control.py.
    @precondition(lambda self: not self.has_placement_under_way())
    @rule()
    def restart_scheduler(self) -> None:
        self.world.control.restart_scheduler()

    @precondition(lambda self: self.up())
    @rule(data=st.data(), is_whole=st.sampled_from([False, False, True]))
    def fail_engine(self, data: st.DataObject, is_whole: bool) -> None:
        for engine in self.pick_node(data).instances.engines.values():
            known = sorted(engine.sequences)
            if is_whole or known:
                engine.fail(None if is_whole else data.draw(st.sampled_from(known)))

    @precondition(lambda self: self.up())
    @rule(data=st.data())
    def fail_load(self, data: st.DataObject) -> None:
        instances = self.pick_node(data).instances
        for model in list(instances.loading):
            instances.finish_load(model, "no such file")


class AnyMessage(AnyFault):
    """The same with messages that no real link would lose, repeat or reorder."""

    def peer_links(self) -> list[Link]:
        return [link for link, queue in self.world.queues.items() if HEAD not in link and len(queue) > 0]

    @precondition(lambda self: self.peer_links())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        queue = self.world.queue(*data.draw(st.sampled_from(self.peer_links())))
        del queue[data.draw(st.integers(0, len(queue) - 1))]

    @precondition(lambda self: self.peer_links())
    @rule(data=st.data())
    def delay(self, data: st.DataObject) -> None:
        queue = self.world.queue(*data.draw(st.sampled_from(self.peer_links())))
        frame = queue.popleft()
        queue.insert(data.draw(st.integers(0, len(queue))), frame)

    @precondition(lambda self: self.world.delivered)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        link, frame = data.draw(st.sampled_from(self.world.delivered[-30:]))
        if not isinstance(decode(link, frame), _STATE_MESSAGES):
            self.world.deliver_frame(link, frame)
            self.world.control.requests.flush()


_SETTINGS = settings(max_examples=int(os.environ.get("GODWIT_EXAMPLES", "60")), stateful_step_count=50, deadline=None)
TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = _SETTINGS
TestAnyFault = AnyFault.TestCase
TestAnyFault.settings = _SETTINGS
TestAnyMessage = AnyMessage.TestCase
TestAnyMessage.settings = _SETTINGS

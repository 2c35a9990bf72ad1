"""KV on its way between two workers, and all that may go wrong with it: the tokens are always there."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from godwit.costs.constants import Constant
from godwit.costs.known import PairConstants
from godwit.ports import SequenceSpec
from godwit.protocol import kv, wire
from godwit.protocol.entry import MoveRecord
from godwit.protocol.message import Message
from godwit.protocol.messages import KvDone, KvPart, KvWanted
from godwit.types import MoveId, RequestId, Sampling, WorkerId
from tests.protocol.client import Client
from tests.protocol.engine import KV_BYTES_PER_TOKEN, StepEngine
from tests.protocol.situations import finishes, run_until, running_on_a, two_workers
from tests.protocol.world import COSTS, HEAD, LIMITS, MODEL, NUM_PROMPT, World, decode

A, B = WorkerId("a"), WorkerId("b")
NUM_OUTPUT = 13
QUICK_LINK = replace(COSTS, pair=PairConstants(Constant(0.0), Constant(1e6)))


def engine(world: World, name: WorkerId) -> StepEngine:
    return world.nodes[name].instances.engines[MODEL]


def moving_by(world: World, method: str) -> Client:
    """r1 is to move from a to b; nothing of it has been delivered."""
    client = running_on_a(world, NUM_OUTPUT)
    world.move("r1", "b", method=method)
    return client


def parts(world: World) -> list[KvPart]:
    """The chunks that are on their way from a to b."""
    messages = [decode((A, B), frame) for frame in world.queue(A, B) if frame is not None]
    return [message for message in messages if isinstance(message, KvPart)]


def has_parts(world: World) -> None:
    """Let things run until two chunks are on their way to b and come next; leave them there."""
    for _ in range(20):
        while world.queue(A, B) and not parts(world):
            world.deliver("a", "b")
        if parts(world):
            while not isinstance(decode((A, B), world.queue(A, B)[0] or b""), KvPart):
                world.deliver("a", "b")
            return
        world.hold_back("a", "b")
        world.run()
        world.let_go("a", "b")
    raise AssertionError("no KV was sent")


def only_record(world: World) -> MoveRecord:
    (record,) = world.records
    return record


def test_the_kv_of_the_whole_context_is_shipped_and_only_the_rest_is_computed() -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    finishes(world, client)
    record = only_record(world)
    assert (record.method, record.outcome, record.kv_problem) == ("kv", "done", None)
    assert record.kv_tokens >= NUM_PROMPT + NUM_OUTPUT - 1
    assert record.kv_bytes == record.kv_tokens * KV_BYTES_PER_TOKEN
    assert record.actual and record.actual.transfer_s is not None and record.actual.ready_s is not None
    assert record.predicted and record.predicted.ready_s is not None
    assert engine(world, B).num_imported == record.kv_tokens
    assert sum(one.tokens for one in record.rounds) <= record.num_output + NUM_PROMPT - record.kv_tokens


@pytest.mark.parametrize("num_steps", [1, 3, 30])
def test_a_split_computes_from_the_front_until_it_meets_the_kv_that_comes_from_the_end(
    num_steps: int,
) -> None:
    world = two_workers()
    client = moving_by(world, "split")
    has_parts(world)
    for _ in range(num_steps):
        world.step("b")
    assert engine(world, B).num_computed > 0, "it waits for the KV"
    finishes(world, client)
    record = only_record(world)
    assert (record.method, record.outcome) == ("split", "done")
    assert record.kv_tokens + record.computed_tokens == NUM_PROMPT + NUM_OUTPUT - 1
    assert engine(world, B).num_imported == record.kv_tokens
    assert (record.kv_tokens == 0) == (num_steps == 30), "a slow link leaves all to the destination"


@pytest.mark.parametrize("method", ["tokens", "kv", "split"])
def test_a_source_that_has_stopped_ships_as_well(method: str) -> None:
    world = two_workers()
    client = running_on_a(world, NUM_OUTPUT)
    world.move("r1", "b", replace(LIMITS, live=False), method)
    finishes(world, client)
    record = only_record(world)
    assert (record.method, record.outcome, record.is_live) == (method, "done", False)
    assert (record.kv_tokens > 0) == (method != "tokens") == (record.kv_bytes > 0)
    assert record.kv_tokens + record.computed_tokens in (record.context_tokens, record.context_tokens - 1)
    assert record.actual and record.actual.ready_s == record.pause_s


@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize("method", ["kv", "split"])
def test_an_end_that_dies_after_the_handover_with_kv_under_way_costs_no_token(who: str, method: str) -> None:
    world = two_workers()
    client = running_on_a(world, NUM_OUTPUT)
    world.move("r1", "b", replace(LIMITS, live=False), method)
    has_parts(world)
    world.crash(who)
    finishes(world, client)


def test_what_is_drawn_while_the_kv_is_on_the_way_is_shipped_too() -> None:
    world = two_workers(costs=QUICK_LINK)
    client = moving_by(world, "kv")
    has_parts(world)
    for _ in range(4):
        world.step("a")
        world.nodes[A].take_report()
    finishes(world, client)
    record = only_record(world)
    assert (record.method, record.outcome) == ("kv", "done")
    assert record.kv_tokens > NUM_PROMPT + NUM_OUTPUT


def test_the_source_goes_on_drawing_while_its_kv_is_on_the_way() -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    before = len(client.ids)
    for _ in range(4):
        world.step("a")
        world.nodes[A].take_report()
        world.deliver("a", HEAD)
    assert len(client.ids) == before + 4
    finishes(world, client)
    assert only_record(world).method == "kv"


def test_no_more_than_the_window_is_under_way() -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    seen = 0
    while parts(world):
        assert sum(len(one.data) for one in parts(world)) <= kv.WINDOW_BYTES
        seen += 1
        world.deliver("a", "b")
        while world.queue(B, A):
            world.deliver("b", "a")
    assert seen > 3
    finishes(world, client)
    assert only_record(world).method == "kv"


def test_a_drain_moves_as_configured() -> None:
    world = two_workers()
    world.control.method = "auto"
    client = running_on_a(world, NUM_OUTPUT)
    world.control.ask_drain(A, None)
    run_until(world, lambda: bool(world.records))
    assert (only_record(world).method, only_record(world).outcome) == ("split", "done")
    finishes(world, client)


def test_a_request_without_output_moves_by_its_tokens() -> None:
    world = two_workers()
    client = world.start("r1", 20)
    world.deliver_all()
    world.move("r1", "b", method="kv")
    finishes(world, client)
    assert only_record(world).method == "tokens" and only_record(world).kv_problem is None


def fell_back(world: World, client: Client, why: str) -> None:
    """The move is done without the KV, the record says why, and the destination computed everything."""
    run_until(world, lambda: bool(world.records))
    finishes(world, client)
    record = only_record(world)
    assert (record.method, record.outcome) == ("kv→tokens", "done"), record
    assert record.kv_problem is not None and why in record.kv_problem
    assert record.kv_tokens == 0 and engine(world, B).num_imported == 0


def change_next(world: World, **fields: object) -> None:
    """Put other values into the chunk that comes next."""
    queue = world.queue(A, B)
    queue[0] = wire.encode(replace(parts(world)[0], **fields))


def lose_a_chunk(world: World) -> None:
    world.queue(A, B).popleft()


def corrupt_a_chunk(world: World) -> None:
    change_next(world, data=b"?" * len(parts(world)[0].data))


def claim_too_much(world: World) -> None:
    change_next(world, total=kv.MAX_BLOCK_BYTES + 1)


def claim_another_size(world: World) -> None:
    world.deliver("a", "b")
    change_next(world, total=1 << 20)


def swap_chunks(world: World) -> None:
    queue = world.queue(A, B)
    queue[0], queue[1] = queue[1], queue[0]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (lose_a_chunk, "a chunk of"),
        (swap_chunks, "a chunk of"),
        (claim_too_much, "a chunk of"),
        (claim_another_size, "a chunk of"),
        (corrupt_a_chunk, "digest"),
    ],
)
def test_kv_that_is_cut_or_corrupt_is_computed(fault: Callable[[World], None], why: str) -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    fault(world)
    fell_back(world, client, why)


def test_kv_that_is_late_is_given_up_by_its_source() -> None:
    world = two_workers()
    client = running_on_a(world, NUM_OUTPUT)
    world.move("r1", "b", replace(LIMITS, timeout_s=8.0), "kv")
    has_parts(world)
    world.hold_back("a", "b")
    world.tick(4.0)
    world.thaw()
    fell_back(world, client, "took too long")


def test_kv_that_stays_away_is_given_up_by_its_destination() -> None:
    world = two_workers()
    client = running_on_a(world, NUM_OUTPUT)
    world.move("r1", "b", replace(LIMITS, timeout_s=100.0), "kv")
    has_parts(world)
    while parts(world):
        world.queue(A, B).popleft()
    world.tick(kv.SILENCE_S)
    fell_back(world, client, "it did not come")


@pytest.mark.parametrize(
    ("who", "layout", "why"),
    [(A, None, "exports no"), (B, None, "not modelled"), (B, "another build", "another build, not modelled")],
)
def test_kv_that_the_other_end_cannot_read_is_computed(who: WorkerId, layout: str | None, why: str) -> None:
    world = two_workers()
    engine(world, who).kv_layout = layout
    fell_back(world, moving_by(world, "kv"), why)
    assert not any(isinstance(decode(*one), KvPart) for one in world.delivered)


def test_without_a_direct_link_only_tokens_go_and_no_kv_through_the_head() -> None:
    world = two_workers()
    world.relayed = {(A, B), (B, A)}
    fell_back(world, moving_by(world, "kv"), "no direct link")


def test_where_the_engine_exports_nothing_the_kv_is_computed() -> None:
    world = two_workers()
    engine(world, A).exports_nothing = True
    fell_back(world, moving_by(world, "kv"), "not computed")


def test_a_full_destination_leaves_the_request_where_it_is() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world, NUM_OUTPUT)
    world.join("b", slots=1)
    other = RequestId("another head's")
    engine(world, B).open(other, SequenceSpec((1,), (), Sampling(seed=1, max_tokens=1)))
    world.move("r1", "b", method="kv")
    world.run(2)
    assert world.owner("r1") == "a" and world.coordinator("r1") is None
    engine(world, B).release(other)
    finishes(world, client)
    assert only_record(world).outcome == "failed"


def test_a_destination_that_claims_more_than_was_sent_opens_no_window() -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    world.nodes[A].requests.on_peer(B, KvWanted(MoveId("m1"), 10**9))
    for _ in range(4):
        world.step("a")
        world.nodes[A].take_report()
    assert sum(len(one.data) for one in parts(world)) <= 2 * kv.WINDOW_BYTES
    finishes(world, client)


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_worker_that_dies_with_kv_under_way_costs_no_token(who: str) -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    world.crash(who)
    finishes(world, client)


def test_a_link_that_breaks_with_kv_under_way_leaves_the_request_where_it_is() -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    has_parts(world)
    world.cut("a", "b", num_kept=1)
    world.run()
    assert world.owner("r1") == "a"
    finishes(world, client)
    assert only_record(world).outcome == "failed"


def test_a_request_that_is_cancelled_with_kv_under_way_leaves_nothing_behind() -> None:
    world = two_workers()
    moving_by(world, "kv")
    has_parts(world)
    world.cancel("r1")
    run_until(world, lambda: all(not node.requests.num_moves for node in world.nodes.values()))
    assert engine(world, B).free_slots == 2 and engine(world, A).free_slots == 2


@pytest.mark.parametrize("kind", [KvPart, KvWanted, KvDone])
def test_kv_messages_that_come_twice_change_nothing(kind: type[Message]) -> None:
    world = two_workers()
    client = moving_by(world, "kv")
    num_repeated = 0
    for _ in range(200):
        if not (ready := world.ready()):
            for name in "ab":
                world.step(name)
            continue
        world.deliver(*ready[0])
        link, frame = world.delivered[-1]
        if isinstance(decode(link, frame), kind):
            world.deliver_frame(link, frame)
            num_repeated += 1
    finishes(world, client)
    assert num_repeated > 0
    assert (only_record(world).method, only_record(world).outcome) == ("kv", "done")


def test_what_the_engine_copies_for_a_move_that_is_off_is_not_of_the_next_one() -> None:
    world = two_workers()
    world.join("c")
    client = moving_by(world, "split")
    while not any(isinstance(decode(*one), KvWanted) for one in world.delivered):
        if not world.ready():
            world.step("b")
        world.deliver(*world.ready()[0])
    assert engine(world, A).has_commands
    world.cut("a", "b")
    world.deliver_all()
    world.move("r1", "c", method="split")
    world.deliver_all()
    finishes(world, client)
    sent = [decode(*one) for one in world.delivered if one[0] == (A, "c")]
    chunks = [(one.kv, one.offset) for one in sent if isinstance(one, KvPart)]
    assert len(chunks) == len(set(chunks)) > 0

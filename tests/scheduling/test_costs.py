"""Control chooses by both ends of a move and by what they serve, and every move that is made teaches it."""

import pytest
from msgspec.structs import replace

from godwit.costs.choice import MoveCosts
from godwit.costs.constants import Constant
from godwit.costs.known import Constants, PairConstants, ServerConstants
from godwit.costs.report import CostsReport
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.observations import observation
from godwit.types import MoveId, Phases, RequestId, WorkerId
from tests.protocol.situations import finishes, in_rounds, running_on_a, two_workers
from tests.protocol.world import MODEL, World

STEP_S = 0.1


def moved(world: World, to: str, method: str) -> MoveRecord:
    """Move r1, with some time between any two steps of the workers."""
    num_records = len(world.records)
    world.move("r1", to, method=method)
    for _ in range(60):
        if len(world.records) > num_records:
            return world.records[-1]
        world.run()
        world.tick(STEP_S)
    raise AssertionError("the move does not end")


def learnt(world: World) -> tuple[set[tuple[str | None, str | None]], set[tuple[str | None, str | None]]]:
    """Pairs and workers' models that moves have taught something of."""
    report: CostsReport = world.control.costs.report()
    return (
        {(one.source, one.destination) for one in report.pairs[1:] if one.bandwidth_bytes_per_s.n},
        {(one.worker, one.model) for one in report.servers if one.worker and one.prefill_tps.n},
    )


def test_a_move_by_tokens_teaches_how_fast_its_destination_computes() -> None:
    world = two_workers()
    client = running_on_a(world, 5)
    record = moved(world, "b", "tokens")
    assert record.outcome == "done"
    assert learnt(world) == (set(), {("b", MODEL)})
    assert set(world.control.costs.errors()) == {"compute", "ready"}
    finishes(world, client)


def test_a_move_with_kv_teaches_its_pair_in_its_direction() -> None:
    world = two_workers()
    client = running_on_a(world, 5)
    record = moved(world, "b", "kv")
    assert record.kv_bytes > 0 and record.kv_problem is None
    assert learnt(world)[0] == {("a", "b")}
    assert "transfer" in world.control.costs.errors()
    finishes(world, client)


def test_a_move_that_fails_and_a_failover_teach_nothing() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.tick(STEP_S)
    world.crash("b")
    world.run()
    assert [record.outcome for record in world.records] == ["failed"]
    world.join("c")
    world.tick(STEP_S)
    world.crash("a")
    finishes(world, client)
    assert [record.method for record in world.records] == ["tokens", "failover"]
    assert learnt(world) == (set(), set())


LOADED = Constants(
    PairConstants(Constant(0.0), Constant(1e4)),
    workers={("b", MODEL): ServerConstants(Constant(100.0), Constant(0.0), Constant(50.0))},
)


@pytest.mark.parametrize(
    ("others", "factor"),
    [((), 1.0), (("a",), 1.0), (("b",), 1.0), (("a", "b"), 2.0)],
)
def test_rates_under_load_count_where_both_ends_serve_other_requests(
    others: tuple[str, ...], factor: float
) -> None:
    world = World()
    world.control.costs = MoveCosts(LOADED)
    for name in ("a", "b"):
        world.join(name, slots=4)
        if name in others:
            world.start(f"other on {name}", 40, seed=671)
            world.run()
        if name == "a":
            client = world.start("r1", 48, seed=671)
            world.run()
    assert world.owner("r1") == "a"
    assert {world.owner(f"other on {name}") for name in others} == set(others)
    record = moved(world, "b", "tokens")
    assert record.predicted is not None
    assert record.predicted.ready_s == pytest.approx(factor * record.context_tokens / 100)
    finishes(world, client)


DONE = MoveRecord(
    MoveId("m1"),
    RequestId("r1"),
    WorkerId("a"),
    WorkerId("b"),
    "tokens",
    "done",
    "asked for",
    (),
    0,
    9,
    0.01,
    1.0,
    actual=Phases(None, 0.5, 0.6),
    computed_tokens=20,
)


def test_only_moves_that_went_as_planned_are_observations() -> None:
    seen = observation(DONE, both_loaded=True)
    assert seen is not None
    assert (seen.computed_tokens, seen.recompute_s, seen.both_loaded) == (20, 0.6, True)


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "failed"},
        {"method": "failover"},
        {"method": "kv→tokens", "kv_problem": "it came too late"},
        {"destination": None},
        {"actual": None},
    ],
)
def test_other_moves_are_none(change: dict[str, str | None]) -> None:
    assert observation(replace(DONE, **change)) is None

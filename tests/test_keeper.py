"""What a head remembers: lessons, the catalog, and what it counts."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from godwit.config import ModelSettings
from godwit.costs.choice import Observation
from godwit.costs.constants import Constant
from godwit.costs.known import Constants, ServerConstants
from godwit.errors import ConfigError
from godwit.keeper import ALIVE_EVERY_S, Keeper, stays
from godwit.router.metrics import RouterMetrics
from godwit.runtime.store import HEAD_STOPPED, HEAD_STOPS, Session, Store
from godwit.scheduling.catalog import Catalog
from godwit.scheduling.eventlog import EventLog
from godwit.types import LoadRecord, ModelName, Phases, RequestId, Tier, WorkerId

W1 = WorkerId("w1")
M = ModelName("m")
R = RequestId("r")
FAKE = ModelSettings(name="a", engine="fake")


@pytest.fixture
def metrics() -> RouterMetrics:
    return RouterMetrics(CollectorRegistry())


@pytest.fixture
def keeper(metrics: RouterMetrics) -> Iterator[Keeper]:
    with closing(Store(None)) as store:
        yield Keeper(store, metrics, None)


def number(metrics: RouterMetrics, name: str) -> float:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def catalog() -> Catalog:
    return Catalog(lambda _worker, _message: None)


def test_what_was_learnt_is_learnt_again(tmp_path: Path, metrics: RouterMetrics) -> None:
    path = tmp_path / "head.sqlite"
    with closing(Store(path)) as store:
        first = Keeper(store, metrics, None)
        for _ in range(2):
            first.load(W1, LoadRecord(Tier.SSD, 10**9, 0.5, 2.0))
        for context in (100, 400, 900, 1600):
            first.resume(W1, M, context, 0.1 + context / 50)
        first.tokens(W1, M, 100, 2.0)
        for context in (100, 400, 900, 1600):
            first.prefill(W1, M, context, context / 200)
        for _ in range(200):
            first.output(M, 40, 20)
        for tokens in (100, 500, 900):
            seconds = tokens / 40
            phases = Phases(compute_s=seconds, ready_s=seconds)
            first.costs.learn(Observation("m", "w0", "w1", phases, computed_tokens=tokens))
    with closing(Store(path)) as store:
        second = Keeper(store, metrics, None)
        (load,) = [one for one in second.times.report().loads if one.worker == W1]
        assert (load.n, load.tier) == (2, Tier.SSD)
        assert load.bandwidth_bytes_per_s == pytest.approx(5e8)
        assert second.times.resume_s(W1, M, 1000) == pytest.approx(20.1)
        assert second.times.token_s(W1, M) == pytest.approx(0.02)
        assert second.times.prefill_s(W1, M, 1000) == pytest.approx(5.0)
        assert second.times.remaining_tokens(M, 0, 50, None) == pytest.approx(100, rel=0.05)
        assert second.costs.terms("m", "w0", "w1").destination.prefill_tps == pytest.approx(40)
        # What is learnt again is not stored again.
        assert len(store.latest(Observation)) == 3


def test_a_profile_is_where_it_begins(metrics: RouterMetrics) -> None:
    known = Constants(workers={("w1", "m"): ServerConstants(Constant(100.0), Constant(0.5))})
    with closing(Store(None)) as store:
        keeper = Keeper(store, metrics, known)
    assert keeper.times.resume_s(W1, M, 100) == pytest.approx(1.5)
    assert keeper.costs.terms("m", "w0", "w1").destination.prefill_tps == pytest.approx(100)


def test_the_catalog_is_kept_as_it_changes(tmp_path: Path, metrics: RouterMetrics) -> None:
    async def keep() -> None:
        path = tmp_path / "head.sqlite"
        changes: list[tuple[Callable[[Catalog], None], tuple[set[str], set[str]]]] = [
            (lambda c: c.added.update({ModelName("a"): FAKE}), ({"a"}, set())),
            (lambda c: c.pinned.update({M, ModelName("a")}), ({"a"}, {"a", "m"})),
            (lambda c: c.pinned.discard(M), ({"a"}, {"a"})),
            (lambda c: c.added.clear(), (set(), {"a"})),
        ]
        for change, expected in changes:
            with closing(Store(path)) as store:
                keeper, now = Keeper(store, metrics, None), catalog()
                keeper.restore(now)
                change(now)
                await keeper.keep(now)
                # What it has said is kept must be so, however this process ends.
                assert ({model.name for model in store.added()}, store.pins()) == expected

    asyncio.run(keep())


def test_the_catalog_is_kept_where_nobody_waits_for_it(metrics: RouterMetrics) -> None:
    with closing(Store(None)) as store:
        keeper, now = Keeper(store, metrics, None), catalog()
        now.added[ModelName("a")] = FAKE
        now.pinned.add(M)
        keeper.tick(0.0, EventLog(1), now)
        assert (store.added(), store.pins()) == ([FAKE], {"m"})


def test_startup_is_counted_once_a_request_however_often_it_starts(
    keeper: Keeper, metrics: RouterMetrics
) -> None:
    log = EventLog(100)
    for at_s, kind in ((1.0, "RequestQueued"), (3.0, "Start"), (9.0, "RequestQueued"), (30.0, "Start")):
        log.add(at_s, kind, "", request=R)
        keeper.tick(at_s, log, catalog())
    assert number(metrics, "godwit_startup_seconds_count") == 1
    assert number(metrics, "godwit_startup_seconds_sum") == 2
    log.add(31.0, "RequestEnded", "", request=R)
    log.add(40.0, "RequestQueued", "", request=R)
    log.add(41.0, "Start", "", request=R)
    keeper.tick(41.0, log, catalog())
    assert number(metrics, "godwit_startup_seconds_sum") == 3


def test_what_had_to_go_is_counted(keeper: Keeper, metrics: RouterMetrics) -> None:
    log = EventLog(100)
    for kind in ("Preempt", "Unload", "Unload", "Interrupt"):
        log.add(0.0, kind, "", model=M, worker=W1, request=R if kind != "Unload" else None)
    for reason in ("drain", "early: expected to save 4.1 s", "asked for"):
        log.add(0.0, "Move", reason, request=R, model=M, worker=W1)
    keeper.tick(0.0, log, catalog())
    keeper.tick(0.1, log, catalog())
    assert number(metrics, "godwit_preemptions_total") == 1
    assert number(metrics, "godwit_evictions_total") == 2
    assert number(metrics, "godwit_early_moves_total") == 1


def test_it_says_from_time_to_time_that_the_head_is_alive(tmp_path: Path, metrics: RouterMetrics) -> None:
    wall_s = [1000.0]
    path = tmp_path / "head.sqlite"
    with closing(Store(path, lambda: wall_s[0])) as store:
        keeper = Keeper(store, metrics, None)
        keeper.joined(W1, 1)
        for now in (0.0, ALIVE_EVERY_S - 1, ALIVE_EVERY_S):
            wall_s[0] = 1000.0 + now
            keeper.tick(now, EventLog(1), catalog())
        store.sessions()
        for suffix in ("", "-wal"):
            crashed = tmp_path / f"crashed{suffix}"
            crashed.write_bytes((tmp_path / f"head.sqlite{suffix}").read_bytes())
    with closing(Store(tmp_path / "crashed")) as store:
        (session,) = store.sessions()
    assert session.left_at == 1000.0 + ALIVE_EVERY_S


def test_a_stay_goes_on_over_heads_as_long_as_the_workers_life_does() -> None:
    """A life of w1 saw three heads; the next was there when the last head ended."""
    lost = "its connection was lost"
    ended, cut_off = stays(
        [
            Session(W1, 5, 100.0, 200.0, HEAD_STOPPED),
            Session(WorkerId("w2"), 5, 100.0, 150.0, lost),
            Session(W1, 5, 210.0, 300.0, HEAD_STOPS),
            Session(W1, 5, 310.0, 400.0, lost),
            Session(W1, 6, 410.0, 500.0, HEAD_STOPS),
        ]
    )
    assert [(one.worker, one.joined_at, one.left_at) for one in ended] == [
        ("w2", 100.0, 150.0),
        ("w1", 100.0, 400.0),
    ]
    assert cut_off == [Session(W1, 6, 410.0, 500.0, HEAD_STOPS)]


def test_hazards_begin_from_what_is_stored(tmp_path: Path, metrics: RouterMetrics) -> None:
    """Two sessions of 100 s; the third was under way for 30 s when a head crashed, 70 s ago."""
    path, wall_s = tmp_path / "head.sqlite", [1000.0]
    with closing(Store(path, lambda: wall_s[0])) as store:
        for incarnation in (1, 2, 3):
            store.joined(W1, incarnation)
            store.written().result()
            wall_s[0] += 100.0 if incarnation < 3 else 30.0
            if incarnation < 3:
                store.left(W1, "left on purpose")
    wall_s[0] += 70.0
    with closing(Store(path, lambda: wall_s[0])) as store:
        keeper = Keeper(store, metrics, None, "weibull", now=lambda: 5.0, wall_now=lambda: wall_s[0])
        keeper.hazards.joined(W1, 6.0, 3)
        (told,) = keeper.hazards.report(6.0)
    assert (told.n, told.num_ended, told.family) == (2, 2, "weibull")
    assert told.age_s == pytest.approx(101.0)


def test_no_such_family(metrics: RouterMetrics) -> None:
    with closing(Store(None)) as store, pytest.raises(ConfigError, match="kaplan_meier"):
        Keeper(store, metrics, None, "gamma")

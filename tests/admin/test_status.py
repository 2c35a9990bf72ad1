"""What operators see: tiers, instances, requests, estimates, metrics; and who may see it."""

from pathlib import Path

import pytest

from godwit.admin.shapes import Estimates, Progress
from godwit.client import decode
from godwit.config import HeadSettings, SecuritySettings
from godwit.errors import BadRequestError, NotFoundError
from godwit.protocol.model_messages import LoadProgress, ModelChanged
from godwit.runtime.store import Store
from godwit.types import LoadRecord, ModelName, Tier
from tests.admin.scripted import GB, Head, info

pytestmark = pytest.mark.anyio

ROUTES = (
    ("GET", "/admin/status"),
    ("GET", "/admin/costs"),
    ("GET", "/admin/estimates"),
    ("GET", "/admin/explain?model=a"),
    ("GET", "/admin/events"),
    ("GET", "/admin/models"),
    ("POST", "/admin/models"),
    ("DELETE", "/admin/models/a/b"),
    ("POST", "/admin/models/a/b/pin"),
    ("POST", "/admin/migrate"),
    ("POST", "/admin/drain"),
    ("POST", "/admin/scheduler/restart"),
)


async def test_a_worker_shows_its_memory_its_tiers_and_what_is_emulated(head: Head) -> None:
    tiers = ((Tier.SSD, 1e8), (Tier.REMOTE, 1e6))
    await head.join("w1", info("a", is_loaded=True), info("b"), dram_bytes=GB, emulated_tiers=tiers)
    (worker,) = (await head.admin.status()).workers
    assert (worker.device_bytes, worker.used_bytes, worker.dram_bytes) == (8 * GB, 3 * GB, GB)
    assert worker.emulated_tiers == dict(tiers)
    a, b = worker.models
    assert (a.is_loaded, a.device_bytes, a.checkpoint_bytes, a.tier) == (True, 3 * GB, 2 * GB, Tier.SSD)
    assert (b.is_loaded, b.is_loading, b.num_running) == (False, False, 0)


async def test_a_load_shows_how_far_it_is_and_what_it_taught(head: Head) -> None:
    worker = await head.join("w1", info("a"))
    asking = head.complete("a")
    await head.until(lambda status: status.workers[0].models[0].is_loading)
    worker.send(LoadProgress(ModelName("a"), Tier.SSD, GB, 2 * GB))
    status = await head.until(lambda status: status.workers[0].models[0].progress is not None)
    assert status.workers[0].models[0].progress == Progress(Tier.SSD, GB, 2 * GB)
    assert status.requests[0].state == "queued"
    worker.send(ModelChanged(info("a", is_loaded=True), load=LoadRecord(Tier.SSD, 2 * GB, 0.0, 0.5)))
    status = await head.until(lambda status: status.workers[0].models[0].num_running == 1)
    (model,) = status.workers[0].models
    assert (model.is_loaded, model.is_loading, model.progress) == (True, False, None)
    estimates = decode(await head.admin.estimates_json(), Estimates).estimates
    (own,) = [load for load in estimates.loads if load.worker == "w1"]
    assert (own.tier, own.n, own.provenance) == (Tier.SSD, 1, "learnt")
    assert own.bandwidth_bytes_per_s == pytest.approx(4e9)
    assert estimates.errors["load"].n == 1
    metrics = await head.metrics()
    assert metrics['godwit_loads_total{tier="ssd"}'] == 1
    assert metrics['godwit_load_bytes_total{tier="ssd"}'] == 2 * GB
    assert metrics['godwit_load_seconds_sum{tier="ssd"}'] == 0.5
    # 2 GB at the assumed 1.5 GB/s are 1.33 s.
    error_s = metrics['godwit_startup_prediction_error_seconds_sum{what="load"}']
    assert error_s == pytest.approx(2 / 1.5 - 0.5)
    asking.cancel()


async def test_an_eviction_and_the_startup_that_it_makes_room_for_are_counted(head: Head) -> None:
    worker = await head.join("w1", info("a", is_loaded=True), info("b"), device_bytes=4 * GB)
    asking = head.complete("b")
    await head.until(lambda status: status.workers[0].models[1].is_loading)
    worker.send(ModelChanged(info("a")))
    worker.send(ModelChanged(info("b", is_loaded=True), load=LoadRecord(Tier.SSD, 2 * GB, 0.0, 0.5)))
    await head.until(lambda status: status.workers[0].models[1].num_running == 1)
    metrics = await head.metrics()
    while metrics["godwit_startup_seconds_count"] == 0:  # it is counted at the head's next tick
        metrics = await head.metrics()
    assert metrics["godwit_evictions_total"] == 1
    assert metrics["godwit_preemptions_total"] == 0
    assert metrics["godwit_startup_seconds_count"] == 1
    asking.cancel()


async def test_what_loads_took_is_known_after_a_restart_and_so_are_sessions(tmp_path: Path) -> None:
    path = tmp_path / "head.sqlite"
    settings = HeadSettings(port=0, store=str(path))
    async with Head(settings) as head:
        worker = await head.join("w1", info("a"), incarnation=3)
        for _ in range(2):
            worker.send(ModelChanged(info("a"), load=LoadRecord(Tier.REMOTE, GB, 0.0, 20.0)))
        await worker.leave()
        await head.until(lambda status: not status.workers)
        await head.join("w2", info("a"), incarnation=4)
    async with Head(settings) as head:
        estimates = decode(await head.admin.estimates_json(), Estimates).estimates
        (pool,) = [load for load in estimates.loads if (load.worker, load.tier) == (None, Tier.REMOTE)]
        assert pool.n == 2
        assert pool.bandwidth_bytes_per_s == pytest.approx(5e7)
        assert estimates.errors == {}
    store = Store(path)
    first, second = store.sessions()
    store.close()
    assert (first.worker, first.incarnation, first.reason) == ("w1", 3, "left on purpose")
    assert (second.worker, second.incarnation) == ("w2", 4)
    assert first.left_at is not None
    assert second.left_at is not None


async def test_a_model_that_nobody_has_cannot_be_explained(head: Head) -> None:
    await head.join("w1", info("a"))
    assert (await head.admin.explain_json("a")).startswith(b"{")
    with pytest.raises(NotFoundError, match="no server has the model 'b'; models: a"):
        await head.admin.explain_json("b")
    with pytest.raises(BadRequestError, match="which model"):
        await head.admin.explain_json("")


async def test_every_route_wants_the_admin_key() -> None:
    async with Head(security=SecuritySettings(admin_key="right")) as head:
        for method, path in ROUTES:
            async with head.session.request(method, path) as response:
                assert response.status == 401, path
        assert (await head.admin.status()).workers == ()


async def test_every_route_is_closed_to_web_pages(head: Head) -> None:
    for method, path in ROUTES:
        async with head.session.request(method, path, headers={"Origin": "https://example.org"}) as response:
            assert response.status == 401, path

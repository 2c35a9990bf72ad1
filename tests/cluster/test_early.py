"""A worker that by its history is about to leave is left early; time is compressed: it stays for seconds."""

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from godwit.config import HazardSettings, Settings, WorkerSettings
from godwit.runtime.store import Store
from godwit.types import WorkerId
from tests.cluster.harness import Cluster, check_whole, fake, settings

pytestmark = pytest.mark.anyio

BODY = {"model": "fake", "prompt": "hello", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def _stayed(path: Path, worker: str, *seconds: float) -> None:
    """Write sessions of a worker that are over, one after the other."""
    at_s = 1000.0
    with closing(Store(path, lambda: at_s)) as store:
        for number, each_s in enumerate(seconds):
            store.joined(WorkerId(worker), number + 1)
            store.written().result()
            at_s += each_s
            store.left(WorkerId(worker), "its connection was lost")
            at_s += 1.0


def _settings(path: Path) -> Settings:
    chosen = settings(fake(decode_s=0.02), worker=WorkerSettings(slots=2))
    return replace(
        chosen,
        head=replace(chosen.head, policy="hazard", store=str(path)),
        hazard=HazardSettings(hysteresis_s=1.0, check_s=0.2),
    )


async def _metric(cluster: Cluster, name: str) -> float:
    async with cluster.session.get(f"{cluster.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


async def _moves(cluster: Cluster) -> list[str]:
    """The reasons of all moves that were decided."""
    log = [json.loads(line) async for line in cluster.admin.events()]
    return [entry["reason"] for entry in log if entry["kind"] == "Move"]


async def test_a_worker_that_always_leaves_soon_is_left_before_it_goes(tmp_path: Path) -> None:
    """w1 has always gone after some 15 s; its request has 30 s to go, and moves once w2 is there."""
    path = tmp_path / "head.sqlite"
    _stayed(path, "w1", 14.0, 15.0, 15.5, 16.0, 15.0, 14.5)
    _stayed(path, "w2", 40_000.0, 50_000.0, 60_000.0)
    async with Cluster(_settings(path), num_workers=1) as cluster:
        stream = await cluster.started(BODY)
        (request,) = (await cluster.state()).requests
        assert request.worker == "w1"
        await cluster.start("w2")
        status = await cluster.wait_for(lambda status: bool(status.moves))
        (record,) = status.moves
        assert (record.source, record.destination, record.outcome) == ("w1", "w2", "done")
        (reason,) = await _moves(cluster)
        assert reason.startswith("early: expected to save")
        assert await _metric(cluster, "godwit_early_moves_total") == 1
        cluster.signal("w1", signal.SIGKILL)
        await check_whole(stream, BODY)
        assert await cluster.outcomes(request.id) == [("tokens", "done")]


async def test_a_worker_that_stays_is_not_left(tmp_path: Path) -> None:
    """The same with a w1 that stays for hours: after 5 s beside w2 the request is where it was."""
    path = tmp_path / "head.sqlite"
    _stayed(path, "w1", 40_000.0, 50_000.0, 60_000.0)
    _stayed(path, "w2", 40_000.0, 50_000.0, 60_000.0)
    async with Cluster(_settings(path), num_workers=1) as cluster:
        stream = await cluster.started(BODY)
        await cluster.start("w2")
        await cluster.joined(["w2"])
        (request,) = (await cluster.state()).requests
        await stream.has(request.num_output + 250)
        assert await _moves(cluster) == []
        await stream.leave()


async def test_the_estimates_say_who_is_likely_to_leave(tmp_path: Path) -> None:
    path = tmp_path / "head.sqlite"
    _stayed(path, "w1", 14.0, 15.0, 15.5, 16.0, 15.0, 14.5)
    async with Cluster(_settings(path)) as cluster:
        w1, w2 = json.loads(await cluster.admin.estimates_json())["leaving"]
        assert (w1["worker"], w1["n"], w1["num_ended"], w1["family"]) == ("w1", 6, 6, "hierarchical")
        assert w1["leaves_within_10_min"] > 0.95
        assert (w2["worker"], w2["n"]) == ("w2", 0)
        assert 0 <= w2["age_s"] < 60

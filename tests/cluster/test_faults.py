"""The failure table, second half: the scheduler, the head, the network and the engine fail."""

import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from godwit.config import WorkerSettings
from tests.cluster.harness import Cluster, check_whole, fake, settings
from tests.cluster.headprocess import HeadCluster

pytestmark = pytest.mark.anyio

LONG_PROMPT = "The bar-tailed godwit flies for eleven days. " * 9


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "A godwit", "max_tokens": 200, "temperature": 0, **changes}


class TestScheduler:
    """It forgets everything; streams go on."""

    async def test_restarts_while_a_request_moves_and_others_wait(self) -> None:
        worker = WorkerSettings(slots=2)
        usual = settings(fake(decode_s=0.01), worker=worker)
        slow = settings(fake(decode_s=0.01, prefill_tokens_per_s=400.0), worker=worker)
        async with Cluster(usual, variants={"w2": slow}) as cluster:
            asked = [body(prompt=LONG_PROMPT), *(body(prompt=f"Bird {number}") for number in range(5))]
            running = [await cluster.started(one, 2) for one in asked[:3]]
            moving = running[0].request
            assert (await cluster.find(moving)).worker == "w1"
            move = cluster.begin_move(moving, "w2")
            await cluster.move_state(moving, "moving")
            waiting = [cluster.open(one) for one in asked[3:]]
            await cluster.wait_for(lambda status: len(status.requests) == 6)
            await cluster.restart_scheduler()
            assert sum(one.worker is None for one in (await cluster.state()).requests) == 3
            assert (await move).outcome == "done"
            await cluster.restart_scheduler()
            for stream, one in zip(running + waiting, asked, strict=True):
                await check_whole(stream, one)
            await cluster.has_all_slots()

    async def test_no_server_in_time(self) -> None:
        """Without any server for too long the stream ends with an error, not with a finish reason."""
        async with Cluster(settings(fake(decode_s=0.01), placement_timeout_s=1.0), 1) as cluster:
            stream = await cluster.started(body(), 5)
            await cluster.kill("w1")
            answer = await stream.end()
            assert "no worker is connected" in (answer.error or "")
            assert answer.only.finish_reason is None
            assert answer.is_done


class TestWorker:
    """It is partitioned, or hangs."""

    async def test_partitioned_then_back(self) -> None:
        async with Cluster(settings(fake(decode_s=0.01), dead_after_s=1.0)) as cluster:
            asked = [body(prompt=f"Bird {number}", max_tokens=400) for number in range(4)]
            streams = [await cluster.started(one, 5) for one in asked]
            cluster.signal("w1", signal.SIGSTOP)
            await cluster.wait_for(lambda status: all(one.worker == "w2" for one in status.requests))
            assert [worker.name for worker in (await cluster.state()).workers] == ["w2"]
            cluster.signal("w1", signal.SIGCONT)
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            assert all(one.worker == "w2" for one in (await cluster.state()).requests)
            for stream, one in zip(streams, asked, strict=True):
                await check_whole(stream, one)
            moved = [stream for stream in streams if await cluster.outcomes(stream.request)]
            assert len(moved) == 2
            await cluster.has_all_slots()

    async def test_engine_stalls(self) -> None:
        worker = WorkerSettings(stall_after_s=0.5)
        usual = settings(fake(decode_s=0.01), worker=worker)
        stalls = settings(fake(decode_s=0.01, stall_after_steps=50), worker=worker)
        async with Cluster(usual, variants={"w1": stalls}) as cluster:
            stream = await cluster.started(body(), 1)
            assert (await cluster.find(stream.request)).worker == "w1"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("failover", "done")]
            (record,) = await cluster.records(stream.request)
            assert record.reason == "its engine is stalled"
            assert [worker.name for worker in (await cluster.state()).workers] == ["w2"]

    async def test_all_are_killed_one_after_another(self) -> None:
        async with Cluster(settings(fake(decode_s=0.01)), 2) as cluster:
            stream = await cluster.started(body(max_tokens=500), 5)
            for name, num_tokens in (("w1", 60), ("w2", 120)):
                await stream.has(num_tokens)
                assert (await cluster.find(stream.request)).worker == name
                await cluster.kill(name)
                await cluster.restart(name)
            await check_whole(stream, body(max_tokens=500))
            assert await cluster.outcomes(stream.request) == [("failover", "done")] * 2


class TestHead:
    """Its process is killed."""

    async def test_dies(self, tmp_path: Path) -> None:
        usual = settings(fake(decode_s=0.01), worker=WorkerSettings(slots=2))
        async with HeadCluster(usual, tmp_path) as cluster:
            streams = [await cluster.started(body(max_tokens=3000), 5) for _ in range(4)]
            await cluster.kill_head()
            for stream in streams:
                with pytest.raises(aiohttp.ClientError):
                    await stream.end()
            assert all(worker.is_running for worker in cluster.workers.values())
            await cluster.start_head()
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            assert not (await cluster.state()).requests
            # Nothing of the former head's requests is left on the workers.
            await cluster.has_all_slots()
            stream = await cluster.started(body(), 5)
            source = (await cluster.find(stream.request)).worker
            assert (await cluster.move(stream.request, "w2" if source == "w1" else "w1")).outcome == "done"
            await check_whole(stream, body())

    async def test_is_frozen(self, tmp_path: Path) -> None:
        """It falls silent without closing anything: workers notice by the link's deadline."""
        usual = settings(fake(decode_s=0.01), dead_after_s=1.0)
        async with HeadCluster(usual, tmp_path) as cluster:
            stream = await cluster.started(body(max_tokens=3000), 5)
            cluster.signal_head(signal.SIGSTOP)
            await cluster.wait_for_log("w1", "link to the head ended")
            await cluster.wait_for_log("w2", "link to the head ended")
            cluster.signal_head(signal.SIGCONT)
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            await stream.leave()
            await cluster.has_all_slots()

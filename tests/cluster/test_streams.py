"""Many streams at once on a moving ground: all of them complete and correct."""

import asyncio
from random import Random
from typing import Any

import pytest

from godwit.config import WorkerSettings
from godwit.errors import GodwitError
from tests.cluster.harness import Cluster, check_whole, fake, settings

pytestmark = pytest.mark.anyio

NUM_STREAMS = 20


def body(number: int) -> dict[str, Any]:
    """Prompts of very different lengths."""
    prompt = f"{number}: " + "far " * (4 * number)
    return {"model": "fake", "prompt": prompt, "max_tokens": 400, "temperature": 0}


async def move_at_random(cluster: Cluster, random: Random) -> int:
    """Move requests until none is left; returns how many moves were done. A refusal is no harm."""
    num_done = 0
    while requests := [one for one in (await cluster.state()).requests if one.worker is not None]:
        chosen = random.choice(requests)
        others = [name for name in cluster.names if name != chosen.worker]
        try:
            record = await cluster.move(chosen.id, random.choice(others), live=random.random() < 0.8)
        except GodwitError:
            continue
        num_done += record.outcome == "done"
    return num_done


async def test_random_moves_and_a_kill() -> None:
    """20 streams on three workers, four movers, and a SIGKILL in the middle."""
    usual = settings(fake(decode_s=0.01, prefill_tokens_per_s=5000.0), worker=WorkerSettings(slots=12))
    async with Cluster(usual, 3) as cluster:
        streams = [await cluster.started(body(number), 1) for number in range(NUM_STREAMS)]
        movers = [asyncio.create_task(move_at_random(cluster, Random(seed))) for seed in range(4)]
        await asyncio.gather(*(stream.has(150) for stream in streams))
        await cluster.kill("w2")
        await asyncio.gather(*(stream.has(250) for stream in streams))
        await cluster.restart("w2")
        for number, stream in enumerate(streams):
            await check_whole(stream, body(number))
        num_moves = sum(await asyncio.gather(*movers))
        records = (await cluster.state()).moves
        assert num_moves >= 10
        assert any(record.method == "failover" for record in records)
        assert {record.outcome for record in records} <= {"done", "failed"}
        await cluster.has_all_slots()

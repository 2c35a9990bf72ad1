"""More models than devices: 200 requests at once for 6 models on 3 workers, each with room for 2 of them."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from godwit.bench.expected import fake_answer, text_of
from godwit.config import ModelSettings, Settings, WorkerSettings
from godwit.engines.fake import FakeOptions
from godwit.types import Sampling
from tests.cluster.harness import Cluster, fake, settings

pytestmark = pytest.mark.anyio

NUM_MODELS, NUM_WORKERS, NUM_REQUESTS = 6, 3, 200
INSTANCE_BYTES = 1_000_000
CHECKPOINT_BYTES = 200_000
MAX_TOKENS = (20, 150)


def _models(folder: Path) -> tuple[ModelSettings, ...]:
    """Each ends its answers at another length, so that a request that ran on another model would show it."""
    models = []
    for number in range(NUM_MODELS):
        path = folder / f"model-{number}.bin"
        path.write_bytes(Random(number).randbytes(CHECKPOINT_BYTES))
        options: dict[str, Any] = {"decode_s": 0.004, "prefill_tokens_per_s": 50_000.0}
        options |= {"device_bytes": INSTANCE_BYTES, "eos_after": MAX_TOKENS[1] - 5 * number}
        models.append(replace(fake(f"m{number}", **options), path=str(path), preload="none"))
    return tuple(models)


def _settings(policy: str, folder: Path) -> Settings:
    worker = WorkerSettings(
        slots=4,
        device_bytes=2 * INSTANCE_BYTES,
        dram_bytes=4 * CHECKPOINT_BYTES,
        emulated_ssd_bytes_per_s=1e6,
        emulated_dram_bytes_per_s=4e6,
    )
    chosen = settings(*_models(folder), worker=worker, placement_timeout_s=120.0)
    return replace(chosen, head=replace(chosen.head, policy=policy))


@pytest.mark.parametrize("policy", ["live_migration", "preemption"])
async def test_all_are_answered_exactly(policy: str, tmp_path: Path) -> None:
    random = Random(policy)
    async with Cluster(_settings(policy, tmp_path), NUM_WORKERS) as cluster:
        bodies = [_body(random) for _ in range(NUM_REQUESTS)]
        await asyncio.gather(*(_check(cluster, body) for body in bodies))
        await cluster.is_idle()
        records = (await cluster.state()).moves
    changed = {record.method for record in records if record.outcome == "done"}
    assert changed <= ({"tokens"} if policy == "live_migration" else {"failover"})


@pytest.mark.parametrize("policy", ["live_migration", "preemption"])
async def test_the_scheduler_may_be_killed_in_the_middle_of_loads_and_moves(
    policy: str, tmp_path: Path
) -> None:
    """A new one takes over after each answer, whatever is under way then; streams do not notice."""
    random = Random(policy)
    async with (
        Cluster(_settings(policy, tmp_path), NUM_WORKERS) as cluster,
        aiohttp.ClientSession() as session,
    ):

        async def check(body: dict[str, Any]) -> None:
            await _check(cluster, body)
            async with session.post(f"{cluster.url}/admin/scheduler/restart") as response:
                assert response.status == 200

        await asyncio.gather(*(check(_body(random)) for _ in range(NUM_REQUESTS // 3)))
        await cluster.is_idle()


def _body(random: Random) -> dict[str, Any]:
    number = random.choices(range(NUM_MODELS), [1 / (i + 1) for i in range(NUM_MODELS)])[0]
    prompt = "".join(random.choices("godwit ", k=random.randint(1, 300)))
    return {
        "model": f"m{number}",
        "prompt": prompt,
        "max_tokens": random.randint(*MAX_TOKENS),
        "temperature": 0,
    }


async def _check(cluster: Cluster, body: dict[str, Any]) -> None:
    answer = await cluster.answer(body)
    sampling = Sampling(0, body["max_tokens"], temperature=0)
    eos_after = MAX_TOKENS[1] - 5 * int(body["model"][1:])
    output, reason = fake_answer(body["prompt"], sampling, FakeOptions(eos_after=eos_after))
    assert answer.error is None
    assert answer.only.ids == [token.id for token in output]
    assert answer.only.text == text_of(output)
    assert answer.only.finish_reason == reason
    assert answer.is_done

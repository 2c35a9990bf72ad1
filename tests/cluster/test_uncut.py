"""Models whose KV cannot be cut, recurrent and hybrid, move by their tokens between real processes."""

from collections.abc import AsyncIterator

import pytest

from godwit.config import ModelSettings, MoveSettings, WorkerSettings
from tests.cluster.harness import Cluster, settings
from tests.engines.tinymodels import write_hybrid, write_mamba

pytestmark = pytest.mark.anyio

WRITERS = {"mamba": write_mamba, "lfm2": write_hybrid}
MAX_TOKENS = 15_000
"""They draw a thousand tokens a second, so that a shorter answer could end before it has moved."""
CUT, TOKENS_AFTER = 10, 40
# A token takes less time than a message: the source waits for the destination, and a gap of many is small.
MOVES = MoveSettings(method="tokens", shadow_tokens=64, pause_budget_steps=64, patience_rounds=1, pace=5)


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 -- its loop is needed
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Cluster]:
    """Two workers that have both models."""
    folder = tmp_path_factory.mktemp("models")
    models = [
        ModelSettings(name=name, path=str(write(folder / f"{name}.gguf"))) for name, write in WRITERS.items()
    ]
    worker = WorkerSettings(slots=2, context_tokens=MAX_TOKENS + 1000)
    async with Cluster(settings(*models, worker=worker, moves=MOVES)) as cluster:
        yield cluster


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["kv", "split"])
async def test_it_moves_by_tokens(cluster: Cluster, name: str, temperature: float, method: str) -> None:
    body = {
        "model": name,
        "prompt": "The godwit flies over the sea. " * 4,
        "temperature": temperature,
        "seed": 5,
        "ignore_eos": True,
        "max_tokens": MAX_TOKENS,
    }
    await cluster.is_idle()
    stream = await cluster.started(body, CUT)
    source = (await cluster.find(stream.request)).worker
    record = await cluster.move(stream.request, "w2" if source == "w1" else "w1", method=method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done"), record
    assert record.kv_problem == "this engine exports no ranges of KV"
    assert (record.kv_tokens, record.kv_bytes) == (0, 0)
    await stream.has(record.num_output + TOKENS_AFTER)
    await stream.leave()
    await cluster.is_idle()
    ids = stream.answer.only.ids
    unmoved = await cluster.answer({**body, "max_tokens": len(ids)})
    assert ids == unmoved.only.ids

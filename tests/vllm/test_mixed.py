"""A fleet of two kinds: embedded llama.cpp with the GGUF, vLLM with a folder that was made of it."""

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from godwit.config import ModelSettings, MoveSettings, WorkerSettings
from godwit.engines.vllm import VllmServer
from tests.cluster.harness import Cluster, settings
from tests.cluster.reference import Reference
from tests.cluster.test_continuation_real import check_equal
from tests.vllm.conftest import CONTEXT_TOKENS, MODEL

pytestmark = pytest.mark.anyio

# float32 against F16: other logits, so that near ties fall the other way now and then.
MAX_TIES = 12
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Describe the bird called godwit in three sentences."}],
    "max_tokens": 90,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
async def mixed(
    anyio_backend: object,  # noqa: ARG001 -- its loop is needed
    servers: list[VllmServer],
) -> AsyncIterator[Cluster]:
    """w1 embeds llama.cpp, w2 has the first vLLM server; both say of what weights their files are."""
    options: dict[str, str | int | float | bool] = {
        "url": servers[0].url,
        "dtype": "float32",
        "python": os.environ["GODWIT_VLLM_PYTHON"],
    }
    embedded = ModelSettings(name=MODEL, origin="smollm2-135m")
    served = ModelSettings(name=MODEL, origin="smollm2-135m", engine="vllm", options=options)
    room = WorkerSettings(slots=2, context_tokens=CONTEXT_TOKENS, stall_after_s=120.0)
    chosen = {
        name: settings(model, worker=room, moves=MoveSettings(timeout_s=120.0))
        for name, model in (("w1", embedded), ("w2", served))
    }
    async with Cluster(chosen["w1"], variants={"w2": chosen["w2"]}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    """The embedded model, in this process."""
    model = Reference(MODEL)
    yield model
    model.close()


async def test_a_request_goes_there_and_back_by_its_tokens(mixed: Cluster, reference: Reference) -> None:
    unmoved = await mixed.answer(BODY)
    stream = await mixed.started(BODY, 5)
    for cut in (5, 45):
        await stream.has(cut)
        here = (await mixed.find(stream.request)).worker
        record = await mixed.move(stream.request, "w2" if here == "w1" else "w1", method="auto")
        assert (record.outcome, record.method) == ("done", "tokens"), (record.reason, record.kv_problem)
    check_equal(reference, BODY, await stream.end(), unmoved, MAX_TIES)

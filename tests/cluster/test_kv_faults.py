"""The KV of a real model goes wrong on its way between real processes: the client gets the unmoved answer."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from godwit.config import ModelSettings, WorkerSettings
from godwit.errors import NoFreeSlotError
from godwit.protocol.entry import MoveRecord
from godwit.protocol.kv import SILENCE_S
from godwit.worker.faults import CORRUPT, DELAY, DROP, STRUCK
from tests.cluster.harness import Cluster, settings
from tests.cluster.reference import Reference
from tests.cluster.streams import Answer, Stream
from tests.cluster.test_continuation_real import GREEDY, QUESTION, check_near_ties

pytestmark = pytest.mark.anyio

MODEL = "smollm2-135m"
# Long enough for a split to ship several chunks, by the assumed constants.
BODY = {**GREEDY, "messages": [{"role": "user", "content": QUESTION * 10}]}
USUAL, LONG = 50, 380
"""Tokens of an answer; a long one goes on until a destination that hears nothing has helped itself."""
CUT = 3

SOURCE, CORRUPTING, CUTTING, LATE, OTHER_LAYOUT, SMALL = "w1", "w2", "w3", "w4", "w5", "w6"
HELD_BACK = f"{DELAY}{SILENCE_S + 1}"
METHODS = pytest.mark.parametrize("method", ["kv", "split"])


@pytest.fixture(scope="module")
async def cluster(anyio_backend: object) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- its loop is needed
    """A sound worker, where requests start, and one destination for each thing that can be wrong."""
    worker = WorkerSettings(slots=2, context_tokens=1024)
    usual = settings(ModelSettings(name=MODEL), worker=worker)
    flash = settings(ModelSettings(name=MODEL, options={"flash_attention": True}), worker=worker)
    small = replace(usual, worker=WorkerSettings(slots=1, context_tokens=128))
    faults = {CORRUPTING: CORRUPT, CUTTING: DROP, LATE: HELD_BACK}
    variants = {OTHER_LAYOUT: flash, SMALL: small}
    async with Cluster(usual, 6, variants=variants, faults=faults) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def unmoved(cluster: Cluster) -> Answer:
    """The undisturbed answer: a shorter one is its beginning."""
    answer: Answer = await cluster.answer({**BODY, "max_tokens": LONG})
    assert len(answer.only.ids) == LONG
    return answer


async def started(cluster: Cluster, max_tokens: int = USUAL) -> tuple[Stream, dict[str, Any]]:
    """A request that draws at the source, alone."""
    await cluster.is_idle()
    body = {**BODY, "max_tokens": max_tokens}
    stream = await cluster.started(body, CUT)
    assert (await cluster.find(stream.request)).worker == SOURCE
    return stream, body


async def check(stream: Stream, body: dict[str, Any], unmoved: Answer, reference: Reference) -> None:
    """All tokens are those of the unmoved answer, but for a near tie where KV was recomputed."""
    answer, length = await stream.end(), body["max_tokens"]
    assert (answer.error, answer.is_done, answer.only.finish_reason) == (None, True, "length")
    assert answer.usage is not None and answer.usage["completion_tokens"] == length == len(answer.only.ids)
    if answer.only.ids != unmoved.only.ids[:length]:
        check_near_ties(reference, body, 0, answer.only)
    else:
        assert unmoved.only.text.startswith(answer.only.text)


def num_struck(cluster: Cluster, name: str) -> int:
    return cluster.log_of(name).count(STRUCK)


async def moved(cluster: Cluster, stream: Stream, to: str, method: str) -> MoveRecord:
    """The record of a move on which the destination's fault has struck."""
    num_before = num_struck(cluster, to)
    record = await cluster.move(stream.request, to, method=method)
    assert num_struck(cluster, to) > num_before, "the fault did not strike: nothing is shown"
    return record


@METHODS
async def test_corrupt(cluster: Cluster, unmoved: Answer, reference: Reference, method: str) -> None:
    stream, body = await started(cluster)
    record = await moved(cluster, stream, CORRUPTING, method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert "digest" in (record.kv_problem or "")
    await check(stream, body, unmoved, reference)


@METHODS
async def test_cut(cluster: Cluster, unmoved: Answer, reference: Reference, method: str) -> None:
    stream, body = await started(cluster)
    record = await moved(cluster, stream, CUTTING, method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert record.kv_problem
    await check(stream, body, unmoved, reference)


@METHODS
async def test_late(cluster: Cluster, unmoved: Answer, reference: Reference, method: str) -> None:
    """It comes after the destination has given it up, and is not taken any more."""
    stream, body = await started(cluster, LONG)
    record = await moved(cluster, stream, LATE, method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert record.kv_problem
    assert record.duration_s > SILENCE_S
    await check(stream, body, unmoved, reference)


@METHODS
async def test_another_layout(cluster: Cluster, unmoved: Answer, reference: Reference, method: str) -> None:
    """With flash attention V is not transposed: the destination wants none of it, and computes all."""
    stream, body = await started(cluster)
    record = await cluster.move(stream.request, OTHER_LAYOUT, method=method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert "flash" in (record.kv_problem or "")
    assert (record.kv_tokens, record.kv_bytes) == (0, 0)
    await check(stream, body, unmoved, reference)


async def test_the_destination_is_full(cluster: Cluster, unmoved: Answer, reference: Reference) -> None:
    await cluster.is_idle()
    short = {"model": MODEL, "prompt": "A godwit", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    other = await cluster.started(short, 1)
    assert (await cluster.move(other.request, SMALL, method="kv")).outcome == "done"
    stream = await cluster.started({**BODY, "max_tokens": USUAL}, CUT)
    with pytest.raises(NoFreeSlotError, match="w6 has no free slot"):
        await cluster.move(stream.request, SMALL, method="kv")
    await check(stream, {**BODY, "max_tokens": USUAL}, unmoved, reference)
    assert (await other.end()).error is None
    assert len(await cluster.records(other.request)) == 1


@METHODS
async def test_no_room_for_its_tokens(
    cluster: Cluster, unmoved: Answer, reference: Reference, method: str
) -> None:
    """The destination's context is shorter than the request: it declines, and no KV is under way for long."""
    stream, body = await started(cluster)
    record = await cluster.move(stream.request, SMALL, method=method)
    assert record.outcome == "failed"
    assert "128" in record.reason
    assert (await cluster.find(stream.request)).worker == SOURCE
    await check(stream, body, unmoved, reference)


@METHODS
async def test_the_source_dies_with_kv_under_way(
    cluster: Cluster, unmoved: Answer, reference: Reference, method: str
) -> None:
    stream, body = await started(cluster)
    num_before = num_struck(cluster, LATE)
    move = cluster.begin_move(stream.request, LATE, method=method)
    await cluster.wait_for_log(LATE, STRUCK, num_before + 1)
    await cluster.kill(SOURCE)
    record = await move
    assert (record.outcome, record.kv_tokens) == ("failed", 0)
    await check(stream, body, unmoved, reference)
    outcomes = [outcome for _, outcome in await cluster.outcomes(stream.request)]
    assert (await cluster.outcomes(stream.request))[-1] == ("failover", "done") and len(outcomes) == 2
    await cluster.restart(SOURCE)


@METHODS
async def test_the_destination_dies_with_kv_under_way(
    cluster: Cluster, unmoved: Answer, reference: Reference, method: str
) -> None:
    stream, body = await started(cluster)
    num_before = num_struck(cluster, LATE)
    move = cluster.begin_move(stream.request, LATE, method=method)
    await cluster.wait_for_log(LATE, STRUCK, num_before + 1)
    await cluster.kill(LATE)
    record = await move
    assert (record.method, record.outcome, record.kv_tokens) == (method, "failed", 0)
    assert (await cluster.find(stream.request)).worker == SOURCE
    await check(stream, body, unmoved, reference)
    assert await cluster.outcomes(stream.request) == [(method, "failed")]
    await cluster.restart(LATE, HELD_BACK)

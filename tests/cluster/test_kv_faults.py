"""The KV of a real model goes wrong on its way between real processes: the client gets the unmoved answer."""

import warnings
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from godwit.config import ModelSettings, WorkerSettings
from godwit.errors import ConflictError, NoFreeSlotError
from godwit.protocol.entry import MoveRecord
from godwit.protocol.kv import SILENCE_S
from godwit.worker.faults import CORRUPT, DELAY, DROP, STRUCK
from tests.cluster.harness import Cluster, settings
from tests.cluster.reference import Reference
from tests.cluster.streams import Stream
from tests.cluster.test_continuation_real import GREEDY, MAX_TIES, QUESTION

pytestmark = pytest.mark.anyio

MODEL = "smollm2-135m"
# Long enough for a split to ship several chunks, by the assumed constants.
BODY = {**GREEDY, "messages": [{"role": "user", "content": QUESTION * 8}]}
USUAL, LONG = 60, 700
"""Tokens of an answer; a long one goes on until a destination that got no KV has computed it."""
FIRST_REFERENCE = 150
TOKENS_AFTER = 16
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


class Unmoved:
    """What a request draws that nobody disturbs: greedy, so that a shorter answer is the beginning of it."""

    def __init__(self, cluster: Cluster, reference: Reference) -> None:
        self._cluster = cluster
        self._reference = reference
        self._ids: list[int] = []

    async def ids(self, length: int) -> list[int]:
        """Its first tokens."""
        if len(self._ids) < length:
            await self._cluster.is_idle()
            asked = {**BODY, "max_tokens": max(length, FIRST_REFERENCE)}
            self._ids = (await self._cluster.answer(asked)).only.ids
        assert len(self._ids) >= length
        return self._ids[:length]

    async def check(self, ids: list[int]) -> None:
        """These are its tokens, but for a near tie where KV was recomputed."""
        if ids != await self.ids(len(ids)):
            ties = self._reference.near_ties(BODY, 0, ids, False)
            assert len(ties) <= MAX_TIES, ties
            warnings.warn(
                f"not the unmoved answer: rounding tipped the draws of outputs {ties}", stacklevel=2
            )

    async def check_whole(self, stream: Stream) -> None:
        """A usual answer, to its end."""
        answer = await stream.end()
        assert (answer.error, answer.is_done, answer.only.finish_reason) == (None, True, "length")
        assert answer.usage is not None and answer.usage["completion_tokens"] == USUAL
        assert len(answer.only.ids) == USUAL
        await self.check(answer.only.ids)

    async def check_so_far(self, stream: Stream, num_output: int) -> None:
        """A long answer, up to a few tokens after `num_output`; then the client leaves."""
        await stream.has(num_output + TOKENS_AFTER)
        await stream.leave()
        assert stream.answer.error is None
        await self.check(stream.answer.only.ids)


@pytest.fixture(scope="module")
def unmoved(cluster: Cluster, reference: Reference) -> Unmoved:
    return Unmoved(cluster, reference)


async def started(cluster: Cluster, max_tokens: int = USUAL) -> Stream:
    """A request that draws at the source, alone."""
    await cluster.is_idle()
    stream = await cluster.started({**BODY, "max_tokens": max_tokens}, CUT)
    assert (await cluster.find(stream.request)).worker == SOURCE
    return stream


def num_struck(cluster: Cluster, name: str) -> int:
    return cluster.log_of(name).count(STRUCK)


async def moved(cluster: Cluster, stream: Stream, to: str, method: str) -> MoveRecord:
    """The record of a move on which the destination's fault has struck."""
    num_before = num_struck(cluster, to)
    record = await cluster.move(stream.request, to, method=method)
    assert num_struck(cluster, to) > num_before, "the fault did not strike: nothing is shown"
    return record


@METHODS
async def test_corrupt(cluster: Cluster, unmoved: Unmoved, method: str) -> None:
    stream = await started(cluster, LONG)
    record = await moved(cluster, stream, CORRUPTING, method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert "digest" in (record.kv_problem or "")
    await unmoved.check_so_far(stream, record.num_output)


@METHODS
async def test_cut(cluster: Cluster, unmoved: Unmoved, method: str) -> None:
    stream = await started(cluster, LONG)
    record = await moved(cluster, stream, CUTTING, method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert record.kv_problem
    await unmoved.check_so_far(stream, record.num_output)


@METHODS
async def test_late(cluster: Cluster, unmoved: Unmoved, method: str) -> None:
    """It comes when the destination has helped itself: at once in a split, else after the silence."""
    stream = await started(cluster, LONG)
    record = await moved(cluster, stream, LATE, method)
    assert (record.outcome, record.kv_tokens) == ("done", 0)
    if method == "kv":
        assert record.method == "kv→tokens" and record.kv_problem
        assert record.duration_s > SILENCE_S
    else:
        assert record.method == ("split→tokens" if record.kv_problem else "split")
    await unmoved.check_so_far(stream, record.num_output)


@METHODS
async def test_another_layout(cluster: Cluster, unmoved: Unmoved, method: str) -> None:
    """With flash attention V is not transposed: the destination wants none of it, and computes all."""
    stream = await started(cluster, LONG)
    record = await cluster.move(stream.request, OTHER_LAYOUT, method=method)
    assert (record.method, record.outcome) == (f"{method}→tokens", "done")
    assert "flash" in (record.kv_problem or "")
    assert (record.kv_tokens, record.kv_bytes) == (0, 0)
    await unmoved.check_so_far(stream, record.num_output)


async def test_the_destination_is_full(cluster: Cluster, unmoved: Unmoved) -> None:
    stream = await started(cluster, LONG)
    short = {"model": MODEL, "prompt": "A godwit", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    other = await cluster.started(short, 1)
    assert (await cluster.move(other.request, SMALL, method="kv")).outcome == "done"
    with pytest.raises(NoFreeSlotError, match="w6 has no free slot"):
        await cluster.move(stream.request, SMALL, method="kv")
    assert (await cluster.find(other.request)).worker == SMALL
    await other.leave()
    assert (await cluster.find(stream.request)).worker == SOURCE
    await unmoved.check_so_far(stream, len(stream.answer.only.ids))


async def test_no_room_for_its_tokens(cluster: Cluster, unmoved: Unmoved) -> None:
    """The destination's context is shorter than the request: no move begins."""
    stream = await started(cluster)
    with pytest.raises(ConflictError, match="w6 has a context of 128 tokens"):
        await cluster.move(stream.request, SMALL, method="kv")
    assert (await cluster.find(stream.request)).worker == SOURCE
    await unmoved.check_whole(stream)


@METHODS
async def test_the_source_dies_with_kv_under_way(cluster: Cluster, unmoved: Unmoved, method: str) -> None:
    stream = await started(cluster)
    num_before = num_struck(cluster, LATE)
    move = cluster.begin_move(stream.request, LATE, method=method)
    await cluster.wait_for_log(LATE, STRUCK, num_before + 1)
    await cluster.kill(SOURCE)
    record = await move
    assert (record.outcome, record.kv_tokens) == ("failed", 0)
    await unmoved.check_whole(stream)
    # The destination's word that the KV broke off and the head's own notice of the death are in a race.
    first, last = await cluster.outcomes(stream.request)
    assert first in [(method, "failed"), (f"{method}→tokens", "failed")]
    assert last == ("failover", "done")
    await cluster.restart(SOURCE)


@METHODS
async def test_the_destination_dies_with_kv_under_way(
    cluster: Cluster, unmoved: Unmoved, method: str
) -> None:
    stream = await started(cluster)
    num_before = num_struck(cluster, LATE)
    move = cluster.begin_move(stream.request, LATE, method=method)
    await cluster.wait_for_log(LATE, STRUCK, num_before + 1)
    await cluster.kill(LATE)
    record = await move
    assert (record.method, record.outcome, record.kv_tokens) == (method, "failed", 0)
    assert (await cluster.find(stream.request)).worker == SOURCE
    await unmoved.check_whole(stream)
    assert await cluster.outcomes(stream.request) == [(method, "failed")]
    await cluster.restart(LATE, HELD_BACK)

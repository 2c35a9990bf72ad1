"""Every row of the design's failure table, first half: a worker dies or refuses while a request moves."""

import signal
from typing import Any

import msgspec
import pytest

from godwit.bench.expected import fake_answer, text_of
from godwit.config import Settings, WorkerSettings
from godwit.errors import GodwitError
from godwit.types import Sampling
from tests.cluster.harness import Cluster, check_whole, fake, settings

pytestmark = pytest.mark.anyio

# One token is one byte of the prompt: at 400 tokens a second this takes a destination one second.
LONG_PROMPT = "The bar-tailed godwit flies for eleven days. " * 9
SLOW = 400.0
# Two models of which a worker's device holds one.
ONE_MODEL_BYTES = 1_500_000


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": LONG_PROMPT, "max_tokens": 200, "temperature": 0, **changes}


def with_slow_destination(slots: int = 4, dead_after_s: float = 3.0) -> tuple[Settings, dict[str, Settings]]:
    """w1 is quick; w2 computes a prompt slowly, so that rounds can be watched."""
    chosen = WorkerSettings(slots=slots)
    quick = settings(fake(decode_s=0.01), worker=chosen, dead_after_s=dead_after_s)
    slow = settings(fake(decode_s=0.01, prefill_tokens_per_s=SLOW), worker=chosen)
    return quick, {"w2": slow}


def with_missing_model(load_s: float) -> tuple[Settings, dict[str, Settings]]:
    """All but w2 have "fake" loaded; w2 has another model, and needs `load_s` for this one."""
    worker = WorkerSettings(device_bytes=ONE_MODEL_BYTES)
    other = fake("other", decode_s=0.01)
    usual = settings(fake(decode_s=0.01), other, worker=worker)
    missing = settings(other, fake(decode_s=0.01, load_s=load_s), worker=worker)
    return usual, {"w2": missing}


def events(cluster: Cluster, worker: str) -> list[str]:
    """What happened to the model "fake" on a worker, by its log."""
    lines = [msgspec.json.decode(line) for line in cluster.log_of(worker).splitlines()]
    return [line["event"] for line in lines if line.get("model") == "fake"]


class TestLoading:
    """Step 1: the destination loads the model."""

    async def test_destination_dies(self) -> None:
        usual, variants = with_missing_model(load_s=60)
        async with Cluster(usual, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2")
            await cluster.move_state(stream.request, "preparing")
            await cluster.kill("w2")
            assert (await move).outcome == "failed"
            assert (await cluster.find(stream.request)).worker == "w1"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]

    async def test_source_dies(self) -> None:
        usual, variants = with_missing_model(load_s=2)
        async with Cluster(usual, 3, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2")
            await cluster.move_state(stream.request, "preparing")
            await cluster.kill("w1")
            assert (await move).outcome == "failed"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed"), ("failover", "done")]
            assert (await cluster.records(stream.request))[-1].destination == "w3"
            # What was loaded stays until its memory is needed: only the scheduler unloads.
            await cluster.wait_for(lambda _: events(cluster, "w2") == ["loaded"])
            await cluster.is_idle()


class TestBeforeTheFirstRound:
    """After step 2, before step 3."""

    async def test_source_dies(self) -> None:
        usual = settings(fake(decode_s=0.01))
        async with Cluster(usual, faults={"w1": "Migrate"}) as cluster:
            stream = await cluster.started(body(), 5)
            assert (await cluster.move(stream.request, "w2")).outcome == "failed"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed"), ("failover", "done")]
            await cluster.has_all_slots()


class TestRounds:
    """Steps 3 and 4: the destination computes what the source sends."""

    async def test_destination_dies(self) -> None:
        usual, variants = with_slow_destination()
        async with Cluster(usual, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2")
            await cluster.move_state(stream.request, "moving")
            await cluster.kill("w2")
            assert (await move).outcome == "failed"
            now = await cluster.find(stream.request)
            assert (now.worker, now.epoch) == ("w1", 1)
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]

    async def test_destination_has_another_checkpoint(self) -> None:
        usual = settings(fake(decode_s=0.01))
        other = settings(fake(decode_s=0.01, digest="other weights"))
        async with Cluster(usual, variants={"w2": other}) as cluster:
            stream = await cluster.started(body(), 5)
            record = await cluster.move(stream.request, "w2")
            assert record.outcome == "failed"
            assert "another checkpoint" in (record.reason or "")
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]
            await cluster.has_all_slots()

    async def test_destination_has_no_slot(self) -> None:
        usual, variants = with_slow_destination(slots=1)
        async with Cluster(usual, variants=variants) as cluster:
            stream, other = await cluster.started(body(), 5), await cluster.started(body(prompt="Bird"), 5)
            with pytest.raises(GodwitError, match="w2 has no free slot"):
                await cluster.move(stream.request, "w2")
            await check_whole(stream, body())
            await check_whole(other, body(prompt="Bird"))
            await cluster.has_all_slots()

    async def test_request_ends(self) -> None:
        """It finishes, is stopped by its stop string, or its client leaves, while the first round runs."""
        usual, variants = with_slow_destination()
        async with Cluster(usual, variants=variants) as cluster:
            whole = text_of(fake_answer(LONG_PROMPT, Sampling(0, 60, temperature=0))[0])
            for change in ({"max_tokens": 60}, {"stop": whole[-20:]}, {"leaves": True}):
                leaves = change.pop("leaves", False)
                stream = await cluster.started(body(**change), 5)
                assert (await cluster.find(stream.request)).worker == "w1"
                move = cluster.begin_move(stream.request, "w2")
                await cluster.move_state(stream.request, "moving")
                if leaves:
                    await stream.leave()
                else:
                    answer = await stream.end()
                    assert answer.only.text == (whole if "max_tokens" in change else whole[:-20])
                    assert answer.only.finish_reason == ("length" if "max_tokens" in change else "stop")
                record = await move
                assert (record.outcome, record.reason) == ("failed", "the request ended")
                await cluster.has_all_slots()


class TestAfterTheHandover:
    """After step 5: the source has stopped, and the destination has not sent a token yet."""

    async def test_destination_dies(self) -> None:
        usual, variants = with_slow_destination()
        async with Cluster(usual, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2", live=False)
            await cluster.move_state(stream.request, "handed over")
            await cluster.kill("w2")
            assert (await move).outcome == "failed"
            # The same epoch: the source took it back with its KV, nobody was asked to recompute anything.
            now = await cluster.find(stream.request)
            assert (now.worker, now.epoch) == ("w1", 1)
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]

    async def test_destination_dies_of_the_commit(self) -> None:
        usual = settings(fake(decode_s=0.01))
        async with Cluster(usual, faults={"w2": "Commit"}) as cluster:
            stream = await cluster.started(body(), 5)
            assert (await cluster.move(stream.request, "w2")).outcome == "failed"
            now = await cluster.find(stream.request)
            assert (now.worker, now.epoch) == ("w1", 1)
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]
            await cluster.restart("w2")
            await cluster.has_all_slots()

    async def test_source_dies(self) -> None:
        usual, variants = with_slow_destination()
        async with Cluster(usual, variants=variants) as cluster:
            # The two workers are connected from here on, so that what the source sends last does arrive.
            first = await cluster.started(body(prompt="Bird"), 5)
            assert (await cluster.move(first.request, "w2")).outcome == "done"
            stream = await cluster.started(body(), 5)
            assert (await cluster.find(stream.request)).worker == "w1"
            move = cluster.begin_move(stream.request, "w2", live=False)
            await cluster.move_state(stream.request, "handed over")
            await cluster.kill("w1")
            await cluster.move_state(stream.request, "handed over, source gone")
            assert (await move).outcome == "done"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "done")]
            await cluster.has_all_slots()

    async def test_source_dies_with_its_last_words(self) -> None:
        """It has told the head of the handover; whether the destination heard of it is a matter of luck."""
        usual, variants = with_slow_destination()
        async with Cluster(usual, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2", live=False)
            await cluster.move_state(stream.request, "handed over")
            await cluster.kill("w1")
            has_arrived = (await move).outcome == "done"
            await check_whole(stream, body())
            lost = [("tokens", "failed"), ("failover", "done")]
            assert await cluster.outcomes(stream.request) == ([("tokens", "done")] if has_arrived else lost)
            await cluster.has_all_slots()

    async def test_source_dies_once_the_destination_has_begun(self) -> None:
        usual = settings(fake(decode_s=0.01))
        async with Cluster(usual, faults={"w1": "Release"}) as cluster:
            stream = await cluster.started(body(), 5)
            assert (await cluster.move(stream.request, "w2")).outcome == "done"
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "done")]

    async def test_destination_is_cut_off(self) -> None:
        """It is frozen before its first token, and comes back when the source has long taken over again."""
        usual, variants = with_slow_destination(dead_after_s=1.0)
        async with Cluster(usual, variants=variants) as cluster:
            stream = await cluster.started(body(), 5)
            move = cluster.begin_move(stream.request, "w2", live=False)
            await cluster.move_state(stream.request, "handed over")
            cluster.signal("w2", signal.SIGSTOP)
            assert (await move).outcome == "failed"
            cluster.signal("w2", signal.SIGCONT)
            await check_whole(stream, body())
            assert await cluster.outcomes(stream.request) == [("tokens", "failed")]
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            await cluster.has_all_slots()

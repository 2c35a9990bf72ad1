"""The models of one worker: failed loads are heard of, memory is not promised twice, nothing stays behind."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from godwit.engines import create_engine, describe
from godwit.errors import ConflictError, GodwitError, ModelLoadError
from godwit.ports import Engine, SequenceSpec
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, Sampling, Tier
from godwit.worker import instances as instances_module
from godwit.worker.instances import LocalInstances
from godwit.worker.models import LocalModel
from godwit.worker.store import CheckpointStore
from tests.worker.files import MB, until, write

A, B, C = ModelName("a"), ModelName("b"), ModelName("c")
BYTES = 1000
REQUEST = RequestId("r")


def local(name: ModelName, load: Callable[[], Engine] | None = None) -> LocalModel:
    info = describe("fake", name, options={"device_bytes": BYTES})
    make = load or (lambda: create_engine("fake", name=name))
    return LocalModel(info, lambda _: make())


class Rig:
    """Instances with room for some models, and what they reported."""

    def __init__(self, *models: LocalModel, room: int = 1, store: CheckpointStore | None = None) -> None:
        self.changes: list[tuple[str, bool, str | None]] = []
        self.records: list[LoadRecord] = []
        self.tiers: list[tuple[str, str]] = []
        self.store = store or CheckpointStore(Path("/nowhere"), 0, 0)
        self.instances = LocalInstances(models, self.store, room * BYTES, lambda _: None, self._on_change)

    def _on_change(self, info: ModelInfo, error: str | None, load: LoadRecord | None) -> None:
        self.changes.append((info.name, info.is_loaded, error))
        self.tiers.append((info.name, info.tier.value))
        if load is not None:
            self.records.append(load)

    def begin(self, model: ModelName) -> "asyncio.Future[Engine | GodwitError]":
        done: asyncio.Future[Engine | GodwitError] = asyncio.get_running_loop().create_future()
        self.instances.load(model, done.set_result)
        return done

    async def load(self, model: ModelName) -> Engine | GodwitError:
        async with asyncio.timeout(10):
            return await self.begin(model)

    async def serving(self, model: ModelName) -> Engine:
        """A loaded model with one request."""
        engine = await self.load(model)
        assert not isinstance(engine, GodwitError)
        engine.open(REQUEST, SequenceSpec((1, 2), (), Sampling(1, 10)))
        return engine


def test_a_load_that_fails_in_an_unexpected_way_is_reported_and_can_be_tried_again() -> None:
    failures = [ValueError("bad magic")]

    def load() -> Engine:
        if failures:
            raise failures.pop()
        return create_engine("fake", name=A)

    async def scenario() -> None:
        rig = Rig(local(A, load))
        first = await rig.load(A)
        assert isinstance(first, ModelLoadError)
        assert "bad magic" in first.message
        assert rig.changes == [("a", False, "a cannot be loaded: bad magic")]
        assert not isinstance(await rig.load(A), GodwitError)
        await rig.instances.close()

    asyncio.run(scenario())


def slow_to_close(may_close: threading.Event, closed: Callable[[], None]) -> Callable[[], Engine]:
    """Makes an engine whose memory is not free at once."""

    def load() -> Engine:
        engine = create_engine("fake", name=A)
        close = engine.close

        def slow_close() -> None:
            may_close.wait(10)
            close()
            closed()

        engine.close = slow_close  # type: ignore[method-assign]  # the fake closes at once
        return engine

    return load


def test_a_load_waits_until_the_unloaded_model_has_freed_its_memory() -> None:
    events: list[str] = []
    may_close = threading.Event()

    def load_b() -> Engine:
        events.append("b loads")
        return create_engine("fake", name=B)

    async def scenario() -> None:
        rig = Rig(local(A, slow_to_close(may_close, lambda: events.append("a closed"))), local(B, load_b))
        await rig.load(A)
        rig.instances.unload(A)
        loading = rig.begin(B)
        await asyncio.sleep(0.05)
        may_close.set()
        assert not isinstance(await loading, GodwitError)
        await rig.instances.close()

    asyncio.run(scenario())
    assert events == ["a closed", "b loads"]


def test_a_load_that_needs_no_unloaded_memory_does_not_wait_for_it() -> None:
    may_close = threading.Event()

    async def scenario() -> None:
        rig = Rig(local(A, slow_to_close(may_close, lambda: None)), local(B), room=2)
        await rig.load(A)
        rig.instances.unload(A)
        assert not isinstance(await rig.load(B), GodwitError)
        may_close.set()
        await rig.instances.close()

    asyncio.run(scenario())


def test_an_idle_model_is_not_evicted_for_another() -> None:
    async def scenario() -> None:
        rig = Rig(local(A), local(B))
        await rig.load(A)
        refused = await rig.load(B)
        assert isinstance(refused, ModelLoadError)
        assert "raise worker.device_bytes" in refused.message
        assert rig.instances.get(A) is not None
        await rig.instances.close()

    asyncio.run(scenario())


def test_an_unload_waits_for_the_last_request_and_a_load_for_the_unload() -> None:
    async def scenario() -> None:
        rig = Rig(local(A), local(B))
        engine = await rig.serving(A)
        rig.instances.unload(A)
        loading = rig.begin(B)
        await asyncio.sleep(0.05)
        assert rig.instances.get(A) is None, "it takes nothing new"
        assert rig.instances.engines == [engine], "what runs goes on"
        assert not loading.done()
        engine.release(REQUEST)
        assert not isinstance(await loading, GodwitError)
        assert rig.changes == [("a", True, None), ("a", False, None), ("b", True, None)]
        await rig.instances.close()

    asyncio.run(scenario())


def test_a_load_of_a_model_that_is_about_to_be_unloaded_keeps_it() -> None:
    async def scenario() -> None:
        rig = Rig(local(A), local(B))
        engine = await rig.serving(A)
        rig.instances.unload(A)
        other = rig.begin(B)
        assert await rig.load(A) is engine
        assert rig.instances.get(A) is engine
        assert rig.records[-1].tier is Tier.DEVICE, "the head must not take this for old news"
        refused = await other
        assert isinstance(refused, ModelLoadError)
        assert "are in use" in refused.message
        engine.release(REQUEST)
        await asyncio.sleep(0.05)
        assert rig.instances.get(A) is engine
        await rig.instances.close()

    asyncio.run(scenario())


def test_an_unload_is_given_up_where_the_model_stays_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances_module, "CLOSE_S", 0.05)

    async def scenario() -> None:
        rig = Rig(local(A))
        engine = await rig.serving(A)
        rig.instances.unload(A)
        await until(lambda: rig.instances.get(A) is engine)
        assert rig.changes[-1] == ("a", True, None)
        assert rig.records[-1].tier is Tier.DEVICE
        await rig.instances.close()

    asyncio.run(scenario())


def test_a_model_whose_engine_fails_while_it_is_about_to_be_unloaded_is_dropped_once() -> None:
    async def scenario() -> None:
        rig = Rig(local(A))
        await rig.serving(A)
        rig.instances.unload(A)
        rig.instances.drop_broken(A, "no such luck")
        await rig.instances.close()
        assert rig.changes == [("a", True, None), ("a", False, None)]

    asyncio.run(scenario())


def test_an_engine_whose_load_ends_during_close_is_closed_too() -> None:
    may_load = threading.Event()
    loaded: list[Engine] = []

    def load() -> Engine:
        may_load.wait(10)
        loaded.append(create_engine("fake", name=A))
        return loaded[0]

    async def scenario() -> None:
        rig = Rig(local(A, load))
        rig.instances.load(A, lambda _: None)
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(rig.instances.close())
        await asyncio.sleep(0.02)
        may_load.set()
        async with asyncio.timeout(10):
            await closing
        assert not rig.instances.engines
        with pytest.raises(GodwitError, match="closed"):
            loaded[0].open(REQUEST, SequenceSpec((1,), (), Sampling(1, 1)))

    asyncio.run(scenario())
    assert not any(thread.name == "engine-a" for thread in threading.enumerate())


def test_an_unload_cuts_a_load_and_the_next_one_waits_for_what_is_left_of_it() -> None:
    events: list[str] = []
    may_end = threading.Event()

    def slow(cancelled: threading.Event) -> Engine:
        cancelled.wait(10)
        may_end.wait(10)
        events.append("a ended")
        raise ModelLoadError("nobody hears this")

    def load_b() -> Engine:
        events.append("b loads")
        return create_engine("fake", name=B)

    async def scenario() -> None:
        rig = Rig(LocalModel(local(A).info, slow), local(B, load_b))
        cut = rig.begin(A)
        await asyncio.sleep(0)
        rig.instances.unload(A)
        error = await cut
        assert isinstance(error, ModelLoadError)
        assert error.message == "a was unloaded before it was loaded"
        assert rig.instances.loading == ()
        other = rig.begin(B)
        await asyncio.sleep(0.05)
        assert not other.done()
        may_end.set()
        assert not isinstance(await other, GodwitError)
        assert rig.changes == [("a", False, error.message), ("b", True, None)]
        await rig.instances.close()

    asyncio.run(scenario())
    assert events == ["a ended", "b loads"]


def with_file(path: Path, store: CheckpointStore, name: ModelName) -> LocalModel:
    options: dict[str, object] = {"device_bytes": BYTES}
    info = describe("fake", name, path, options=options)
    return LocalModel(
        info, lambda _: create_engine("fake", name=name, path=path, options=options), store.in_place(path)
    )


def test_loads_are_recorded_with_the_tier_that_they_came_from(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = CheckpointStore(tmp_path / "store", MB, 0)
        a, b = (with_file(write(tmp_path / name, 1), store, name) for name in (A, B))
        rig = Rig(a, b, local(C), store=store)
        for model in (A, A, B, A, C):
            await rig.load(model)
            rig.instances.unload(model)
        assert [record.tier for record in rig.records] == [Tier.SSD, Tier.DRAM, Tier.SSD, Tier.SSD, Tier.DRAM]
        assert [record.num_bytes for record in rig.records] == [MB, MB, MB, MB, 0]
        # The last one before b's load ends is that a has left memory for it.
        assert rig.tiers[:7] == [("a", "dram")] * 4 + [("a", "ssd"), ("b", "dram"), ("b", "dram")]
        await rig.instances.close()
        assert store.in_place(tmp_path / "a").num_instances == 0

    asyncio.run(scenario())


def test_a_load_that_is_cut_by_close_leaves_no_use_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = CheckpointStore(tmp_path / "store", MB, 0, {Tier.SSD: 100_000.0})
        model = with_file(write(tmp_path / "a", 1), store, A)
        rig = Rig(model, store=store)
        rig.begin(A)
        assert rig.instances.loading == (A,)
        file = store.in_place(tmp_path / "a")
        await until(lambda: file.num_loads == 1)
        async with asyncio.timeout(5):
            await rig.instances.close()
        assert (file.num_loads, file.num_instances, file.tier) == (0, 0, Tier.SSD)

    asyncio.run(scenario())


def test_only_an_idle_model_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = CheckpointStore(tmp_path / "store", MB, 0)
        rig = Rig(with_file(write(tmp_path / "a", 1), store, A), store=store)
        loading = rig.begin(A)
        with pytest.raises(ConflictError, match="being loaded"):
            await rig.instances.remove(A)
        await loading
        engine = await rig.serving(A)
        with pytest.raises(ConflictError, match="move them away"):
            await rig.instances.remove(A)
        engine.release(REQUEST)
        await rig.instances.remove(A)
        assert rig.instances.infos == ()
        assert store.in_place(tmp_path / "a").tier is Tier.SSD
        await rig.instances.close()

    asyncio.run(scenario())

"""The models of one worker: failed loads are heard of, memory is not promised twice, nothing stays behind."""

import asyncio
import threading
from collections.abc import Callable

from godwit.engines import create_engine, describe
from godwit.errors import GodwitError, ModelLoadError
from godwit.ports import Engine
from godwit.types import ModelInfo, ModelName
from godwit.worker.instances import Checkpoint, LocalInstances

A, B = ModelName("a"), ModelName("b")


def checkpoint(name: ModelName, load: Callable[[], Engine] | None = None) -> Checkpoint:
    return Checkpoint(describe("fake", name), load or (lambda: create_engine("fake", name=name)))


class Rig:
    """Instances with room for one model, and what they reported."""

    def __init__(self, *checkpoints: Checkpoint) -> None:
        self.changes: list[tuple[str, bool, str | None]] = []
        room = max(one.info.device_bytes for one in checkpoints)
        self.instances = LocalInstances(checkpoints, room, lambda _: None, self._on_change)

    def _on_change(self, info: ModelInfo, error: str | None) -> None:
        self.changes.append((info.name, info.is_loaded, error))

    async def load(self, model: ModelName) -> Engine | GodwitError:
        done: asyncio.Future[Engine | GodwitError] = asyncio.get_running_loop().create_future()
        self.instances.load(model, done.set_result)
        async with asyncio.timeout(10):
            return await done


def test_a_load_that_fails_in_an_unexpected_way_is_reported_and_can_be_tried_again() -> None:
    failures = [ValueError("bad magic")]

    def load() -> Engine:
        if failures:
            raise failures.pop()
        return create_engine("fake", name=A)

    async def scenario() -> None:
        rig = Rig(checkpoint(A, load))
        first = await rig.load(A)
        assert isinstance(first, ModelLoadError)
        assert "bad magic" in first.message
        assert rig.changes == [("a", False, "a cannot be loaded: bad magic")]
        assert not isinstance(await rig.load(A), GodwitError)
        await rig.instances.close()

    asyncio.run(scenario())


def test_a_load_waits_until_the_evicted_model_has_freed_its_memory() -> None:
    events: list[str] = []
    may_close = threading.Event()

    def load_a() -> Engine:
        engine = create_engine("fake", name=A)
        close = engine.close

        def slow_close() -> None:
            may_close.wait(10)
            close()
            events.append("a closed")

        engine.close = slow_close  # type: ignore[method-assign]  # the fake closes at once
        return engine

    def load_b() -> Engine:
        events.append("b loads")
        return create_engine("fake", name=B)

    async def scenario() -> None:
        rig = Rig(checkpoint(A, load_a), checkpoint(B, load_b))
        await rig.load(A)
        loading = asyncio.ensure_future(rig.load(B))
        await asyncio.sleep(0.05)
        may_close.set()
        assert not isinstance(await loading, GodwitError)
        await rig.instances.close()

    asyncio.run(scenario())
    assert events == ["a closed", "b loads"]


def test_an_engine_whose_load_ends_during_close_is_closed_too() -> None:
    may_load = threading.Event()
    loaded: list[Engine] = []

    def load() -> Engine:
        may_load.wait(10)
        loaded.append(create_engine("fake", name=A))
        return loaded[0]

    async def scenario() -> None:
        rig = Rig(checkpoint(A, load))
        rig.instances.load(A, lambda _: None)
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(rig.instances.close())
        await asyncio.sleep(0.02)
        may_load.set()
        async with asyncio.timeout(10):
            await closing
        assert not rig.instances.engines

    asyncio.run(scenario())
    assert not any(thread.name == "engine-a" for thread in threading.enumerate())

"""The worker as its head sees it: what it has near when it joins, and what it answers about models."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from godwit.config import ModelSettings, Settings, WorkerSettings
from godwit.protocol.message import Message
from godwit.protocol.messages import Hello, Leave, Welcome
from godwit.protocol.model_messages import (
    AddModel,
    Load,
    LoadProgress,
    ModelChanged,
    ModelRemoved,
    RemoveModel,
    Unload,
)
from godwit.protocol.wire import decode_from_worker, encode
from godwit.runtime.link import Link, accept
from godwit.types import ModelName, Tier
from godwit.worker.app import run_worker
from tests.worker.files import MB, content, names, sha256, until, write

M = TypeVar("M", bound=Message)


class Head:
    """Takes one worker's messages, and sends it orders."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._link: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        link = await accept(request, None, 5.0)
        self._link.set_result(link)
        link.send(encode(Welcome(0.5)))
        await link.run(lambda frame: self._messages.put_nowait(decode_from_worker(frame)))
        return web.Response()

    async def order(self, message: Message) -> None:
        (await self._link).send(encode(message))

    async def hear(self, kind: type[M]) -> M:
        """The next message of this kind; others before it are passed over."""
        async with asyncio.timeout(20):
            while True:
                if isinstance(message := await self._messages.get(), kind):
                    return message


@asynccontextmanager
async def joined(settings: Settings) -> AsyncIterator[tuple[Head, Hello]]:
    """A worker that has joined, until it is told to leave at the end of the block."""
    head = Head()
    app = web.Application()
    app.router.add_get("/link", head.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    working = asyncio.create_task(run_worker(settings, url, "w"))
    try:
        yield head, await head.hear(Hello)
        await head.order(Leave("the test is over"))
        async with asyncio.timeout(20):
            await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await runner.cleanup()


def fake(name: str, **changes: str) -> ModelSettings:
    return ModelSettings(name=name, engine="fake", options={"device_bytes": MB}, **changes)  # type: ignore[arg-type]  # all of them are texts


def test_a_worker_joins_with_its_models_as_near_as_they_are_to_be(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / name, 1)) for name in "abcde"]
    models = (
        fake("on-device", path=paths[0]),
        fake("no-room-there", path=paths[1]),
        fake("in-memory", path=paths[2], preload="dram"),
        fake("no-room-in-memory", path=paths[3], preload="dram"),
        fake("far", url=Path(paths[4]).as_uri(), sha256=sha256(content(1)), preload="none"),
    )
    worker = WorkerSettings(
        checkpoint_dir=str(tmp_path / "store"),
        device_bytes=MB,
        dram_bytes=2 * MB,
        emulated_ssd_bytes_per_s=1e9,
    )

    async def scenario() -> None:
        async with joined(Settings(models=models, worker=worker)) as (_, hello):
            assert [(one.is_loaded, one.tier) for one in hello.models] == [
                (True, Tier.DRAM),
                (False, Tier.SSD),
                (False, Tier.DRAM),
                (False, Tier.SSD),
                (False, Tier.SSD),
            ]
            assert {one.checkpoint_bytes for one in hello.models} == {MB}
            assert (hello.dram_bytes, hello.loading) == (2 * MB, ())
            assert hello.emulated_tiers == ((Tier.SSD, 1e9),)

    asyncio.run(scenario())


def test_a_worker_adds_loads_unloads_and_removes_a_model(tmp_path: Path) -> None:
    model = fake("new", url=write(tmp_path / "a", 1).as_uri(), sha256=sha256(content(1)))
    name = ModelName("new")
    worker = WorkerSettings(checkpoint_dir=str(tmp_path / "store"))

    async def scenario() -> None:
        async with joined(Settings(models=(fake("own"),), worker=worker)) as (head, _):
            await head.order(AddModel(model))
            added = await head.hear(ModelChanged)
            assert (added.model.name, added.model.tier, added.model.is_loaded) == ("new", Tier.SSD, False)
            await head.order(Load(name))
            assert await head.hear(LoadProgress) == LoadProgress(name, Tier.SSD, MB, MB)
            loaded = await head.hear(ModelChanged)
            assert (loaded.model.is_loaded, loaded.model.tier, loaded.error) == (True, Tier.DRAM, None)
            assert loaded.load is not None
            assert (loaded.load.tier, loaded.load.num_bytes) == (Tier.SSD, MB)
            await head.order(Unload(name))
            assert not (await head.hear(ModelChanged)).model.is_loaded
            await head.order(RemoveModel(name))
            assert await head.hear(ModelRemoved) == ModelRemoved(name)

    asyncio.run(scenario())


def test_a_worker_that_leaves_while_it_fetches_leaves_nothing_half_done(tmp_path: Path) -> None:
    model = fake("new", url=write(tmp_path / "a", 1).as_uri(), sha256=sha256(content(1)))
    worker = WorkerSettings(checkpoint_dir=str(tmp_path / "store"), emulated_remote_bytes_per_s=10_000)

    async def scenario() -> None:
        async with joined(Settings(models=(fake("own"),), worker=worker)) as (head, _):
            await head.order(AddModel(model))
            await until(lambda: bool(names(tmp_path / "store" / "w")))

    asyncio.run(scenario())
    assert names(tmp_path / "store" / "w") == []

"""Links over real sockets on loopback: each end learns of the link's end in time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from godwit.errors import LinkError
from godwit.runtime import link as links
from godwit.runtime.link import Link, accept, dial

DEAD_AFTER_S = 30.0


@asynccontextmanager
async def serving(use: Callable[[Link], Awaitable[object]]) -> AsyncIterator[str]:
    """A server that accepts links and uses each of them; its URL."""

    async def handle(request: web.Request) -> web.Response:
        await use(await accept(request, None, DEAD_AFTER_S))
        return web.Response()

    app = web.Application()
    app.router.add_get("/link", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/link"
    finally:
        await runner.cleanup()


def test_frames_arrive_in_order_and_what_is_queued_is_written_before_the_end() -> None:
    async def scenario() -> None:
        received: list[bytes] = []
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def use(link: Link) -> None:
            ended.set_result(await link.run(received.append))

        async with serving(use) as url, aiohttp.ClientSession() as session, asyncio.timeout(10):
            link = await dial(session, url, None, DEAD_AFTER_S)
            frames = [str(n).encode() for n in range(100)]
            for frame in frames:
                link.send(frame)
            link.close("enough")
            assert await link.run(lambda _: None) == "enough"
            assert "enough" in await ended
            assert received == frames

    asyncio.run(scenario())


def test_a_link_whose_other_end_reads_nothing_ends_soon_after_its_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its owner goes on to believe in a worker to which every message is lost."""
    monkeypatch.setattr(links, "CLOSE_S", 0.1)

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def use(_: Link) -> None:
            await is_over.wait()

        async with serving(use) as url, aiohttp.ClientSession() as session, asyncio.timeout(10):
            link = await dial(session, url, None, DEAD_AFTER_S)
            running = asyncio.ensure_future(link.run(lambda _: None))
            for _ in range(40):
                link.send(bytes(1 << 20))
            await asyncio.sleep(0.1)
            link.close("its engine is stalled")
            assert await running == "its engine is stalled"
            with pytest.raises(LinkError):
                link.send(b"late")
            is_over.set()

    asyncio.run(scenario())


def test_a_slow_reader_is_bounded_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CLOSE_S", 0.1)
    monkeypatch.setattr(links, "MAX_PENDING_BYTES", 16 << 20)

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def use(_: Link) -> None:
            await is_over.wait()

        async with serving(use) as url, aiohttp.ClientSession() as session, asyncio.timeout(10):
            link = await dial(session, url, None, DEAD_AFTER_S)
            running = asyncio.ensure_future(link.run(lambda _: None))
            with pytest.raises(LinkError, match="too slowly"):
                for _ in range(40):
                    link.send(bytes(1 << 20))
            assert link.unsent_bytes == 0
            assert "too slowly" in await running
            is_over.set()

    asyncio.run(scenario())


def test_an_emulated_link_takes_the_time_that_its_bytes_would() -> None:
    asyncio.run(_three_frames_take_their_time())


async def _three_frames_take_their_time() -> None:
    taken: list[float] = []
    over = asyncio.Event()

    async def receive(link: Link) -> None:
        def on_frame(_: bytes) -> None:
            taken.append(asyncio.get_running_loop().time())
            if len(taken) == 3:
                over.set()

        await link.run(on_frame)

    async with serving(receive) as url, aiohttp.ClientSession() as session:
        link = await dial(session, url, None, DEAD_AFTER_S, emulated_bytes_per_s=100_000)
        running = asyncio.create_task(link.run(lambda _: None))
        start = asyncio.get_running_loop().time()
        for _ in range(3):
            link.send(bytes(10_000))
        async with asyncio.timeout(10):
            await over.wait()
        link.close("enough")
        await running
    for number, at in enumerate(taken, 1):
        assert at - start >= 0.1 * number - 0.01

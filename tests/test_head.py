"""The head's process in itself: its start and its end."""

import asyncio

import aiohttp
import pytest

from godwit.config import HeadSettings, Settings
from godwit.head import run_head

BODY = {"model": "fake", "prompt": "x", "max_tokens": 5}


def test_requests_end_with_an_error_when_the_head_stops() -> None:
    async def scenario() -> None:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(run_head(Settings(head=HeadSettings(port=0)), listening.set_result))
        url = await listening
        async with aiohttp.ClientSession() as session, asyncio.timeout(10):
            asking = asyncio.create_task(session.post(f"{url}/v1/completions", json=BODY))
            while '"queued"' not in await (await session.get(f"{url}/admin/status")).text():  # noqa: ASYNC110 -- only its status says so
                await asyncio.sleep(0.01)
            serving.cancel()
            async with await asking as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "1"
                assert "the head is stopping" in (await response.json())["error"]["message"]
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(scenario())


def test_web_pages_can_neither_join_nor_order() -> None:
    """On loopback no key is needed, and a browser on this machine lets any page connect to it."""
    page = {"Origin": "https://example.org"}

    async def scenario() -> None:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(run_head(Settings(head=HeadSettings(port=0)), listening.set_result))
        url = await listening
        async with aiohttp.ClientSession(headers=page) as session, asyncio.timeout(10):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{url}/link")
            assert caught.value.status == 401
            for path in ("status", "costs", "drain"):
                method = "POST" if path == "drain" else "GET"
                async with session.request(method, f"{url}/admin/{path}") as response:
                    assert response.status == 401
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(scenario())

"""Clients that leave or do not read: their slots are freed at once, on every choice."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from godwit.router.settings import RouterSettings
from tests.router.scripted import PATIENCE_S, Served, run, served


async def connect(at: Served, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client on a bare socket, whose chat request is on its way."""
    client = socket.socket()
    # Small, so that little fits between a server and a client that does not read.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", at.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **fields}
    raw = msgspec.json.encode(body)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    return reader, writer


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_client_that_leaves_frees_all_its_choices(is_streamed: bool, is_accepted: bool) -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.is_manual = True
            reader, writer = await connect(at, n=2, stream=is_streamed)
            await at.generations.until(lambda: len(at.generations.started) == 2)
            if is_accepted:
                await at.generations.accept_all(2)
                if is_streamed:
                    await reader.readuntil(b'"role"')
            writer.close()
            await at.generations.until(lambda: sorted(at.generations.cancelled) == ["r0-0", "r0-1"])
            assert 'status="499"' in await scrape(at)

    run(main())


async def scrape(at: Served) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


def test_a_choice_that_has_ended_is_not_cancelled_when_the_client_leaves() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.is_manual = True
            reader, writer = await connect(at, n=2, stream=True)
            await at.generations.accept_all(2)
            at.generations.started[0].sink.finished("stop")
            await reader.readuntil(b'"finish_reason":"stop"')
            writer.close()
            await at.generations.until(lambda: bool(at.generations.cancelled))
            assert at.generations.cancelled == ["r0-1"]

    run(main())


def test_a_client_that_does_not_read_is_cut() -> None:
    async def main() -> None:
        settings = RouterSettings(max_unread_bytes=2**16, shutdown_timeout_s=0.1)
        async with served(settings) as at:
            at.generations.is_manual = True
            reader, writer = await connect(at, n=2, stream=True)
            await at.generations.accept_all(2)
            await reader.readuntil(b'"role"')
            sink = at.generations.started[0].sink
            # The kernel's buffers take a few MB before anything stays in the server.
            for index in range(10_000):
                if at.generations.cancelled:
                    break
                sink.tokens(index, [1], [b"x" * 10_000], [])
                sink.flush()
                await asyncio.sleep(0)
            assert sorted(at.generations.cancelled) == ["r0-0", "r0-1"]
            text = await scrape(at)
            assert "godwit_slow_readers_cut_total 1.0" in text
            with suppress(ConnectionResetError):
                while data := await reader.read(2**20):
                    assert b"[DONE]" not in data
            writer.close()

    run(main())


def test_a_client_that_does_not_read_the_end_is_cut_at_the_deadline() -> None:
    async def main() -> None:
        settings = RouterSettings(max_unread_bytes=2**30, drain_timeout_s=0.01, shutdown_timeout_s=0.1)
        async with served(settings) as at:
            at.generations.is_manual = True
            reader, writer = await connect(at, stream=True)
            await at.generations.accept_all(1)
            await reader.readuntil(b'"role"')
            sink = at.generations.started[0].sink
            sink.tokens(0, [1], [b"x" * 50_000_000], [])
            sink.finished("length")
            async with asyncio.timeout(PATIENCE_S):
                while "godwit_slow_readers_cut_total 1.0" not in await scrape(at):
                    pass
            writer.close()

    run(main())

"""An engine's server as its adapter has it: where it answers, and the child process where it is one."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import aiohttp

from godwit.engines.child import ServerProcess, answers, free_port, is_up
from godwit.errors import ModelLoadError

ANSWER_S = 600.0
"""A server that says nothing for so long has lost the request; an answer that goes on may take longer."""
CONNECT_S = 10.0
_READ_BYTES = 1 << 20


class Endpoint:
    """Requests to the server at `url`, and its end where it is the child `process`.

    As many connections as it has requests, and a deadline on silence. All but the start in one event loop.
    """

    def __init__(self, url: str, process: ServerProcess | None) -> None:
        self.url = url
        self._process = process
        self._session: aiohttp.ClientSession | None = None

    @property
    def pid(self) -> int | None:
        """The server's process where it is a child of this one."""
        return None if self._process is None else self._process.pid

    def post(self, path: str, body: Mapping[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._opened.post(f"{self.url}{path}", json=body)

    async def get(self, path: str) -> bytes:
        """The body of the answer, whatever its status."""
        async with self._opened.get(f"{self.url}{path}") as answer:
            return await answer.read()

    async def is_alive(self) -> bool:
        """Whether the server still answers, told within seconds."""
        return await asyncio.to_thread(is_up, self._process, self.url)

    async def close(self) -> None:
        """Close all connections, and stop the child."""
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    @property
    def _opened(self) -> aiohttp.ClientSession:
        """A session without the usual limit of connections, which would have requests wait for each other."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=_READ_BYTES,
            )
        return self._session


@contextmanager
def reached(
    kind: str,
    url: str | None,
    start: Callable[[int], ServerProcess],
    timeout_s: float,
    cancelled: threading.Event | None,
) -> Iterator[Endpoint]:
    """The server at `url`, or (None) the child that `start` starts on a port, once it answers.

    ModelLoadError where nothing answers, or `cancelled` is set first. The child is stopped where the block,
    which looks at what it is, fails.
    """
    process = None
    if url is None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = start(port)
    try:
        if process is not None:
            process.wait_until(lambda: answers(f"{url}/health"), timeout_s, cancelled)
        url = url.rstrip("/")
        if not answers(f"{url}/health"):
            raise ModelLoadError(f"no {kind} answers at {url}: start it, or drop option url")
        yield Endpoint(url, process)
    except BaseException:
        if process is not None:
            process.stop()
        raise

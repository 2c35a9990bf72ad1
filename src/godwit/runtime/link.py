"""One link: ordered frames over a WebSocket, bounded, and given up when the other end falls silent."""

import asyncio
from collections import deque
from collections.abc import Callable

import aiohttp
from aiohttp import web

from godwit.errors import CertificateError, LinkError, ProtocolError, UnauthorizedError
from godwit.runtime.doors import is_from_web_page, shows_key

MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_PENDING_BYTES = 256 * 1024 * 1024
HANDSHAKE_S = 10.0
# How long a link that is closing may take to write what is queued.
CLOSE_S = 1.0

CANCELLED = "cancelled"

WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Link:
    """A connected WebSocket. `send` never waits; `run` reads until the link ends and says why it did.

    The socket's own ping and pong find a silent peer; see `_heartbeat_s`. With `emulated_bytes_per_s` it
    sends no faster than that.
    """

    def __init__(self, socket: WebSocket, emulated_bytes_per_s: float | None = None) -> None:
        self._socket = socket
        self._emulated_bytes_per_s = emulated_bytes_per_s
        self._idle_at_s = 0.0
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._has_pending = asyncio.Event()
        self._is_closing = asyncio.Event()
        self._end: str | None = None

    @property
    def unsent_bytes(self) -> int:
        """What is queued and not with the socket yet."""
        return self._pending_bytes

    @property
    def reason(self) -> str | None:
        """Why it was closed on purpose; None where it was not, or has only been lost."""
        return None if self._end == CANCELLED else self._end

    @property
    def local_host(self) -> str | None:
        """This machine's address on the way to the other end; None where there is none."""
        if not isinstance(self._socket, aiohttp.ClientWebSocketResponse):
            return None
        address = self._socket.get_extra_info("sockname")
        return str(address[0]) if isinstance(address, tuple) else None

    def send(self, data: bytes) -> None:
        """Queue one frame; LinkError where the link has ended or more than its bound is waiting."""
        if self._end is not None:
            raise LinkError(f"the link has ended: {self._end}")
        if self._pending_bytes + len(data) > MAX_PENDING_BYTES:
            self._pending.clear()
            self._pending_bytes = 0
            self.close("the other end reads too slowly")
            raise LinkError("the other end reads too slowly")
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._has_pending.set()

    def close(self, reason: str) -> None:
        """End the link once what is queued has been written, or after `CLOSE_S`; `run` returns `reason`."""
        if self._end is None:
            self._end = reason
            self._has_pending.set()
            self._is_closing.set()

    async def refuse(self, reason: str) -> None:
        """End a link that is not going to run, and tell the other end why."""
        self.close(reason)
        await self._shut()

    async def receive_first(self) -> bytes:
        """The first frame, within the handshake's deadline; LinkError."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                message = await self._socket.receive()
        except TimeoutError as error:
            raise LinkError("no first frame in time") from error
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise LinkError("the link closed during its handshake")
        return bytes(message.data)

    async def run(self, on_frame: Callable[[bytes], None]) -> str:
        """Give every frame to `on_frame` until the link ends; returns the reason, never raises LinkError."""
        work = (self._read(on_frame), self._write(), self._close_in_time())
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (OSError, aiohttp.ClientError) as error:
            self.close(str(error) or type(error).__name__)
        finally:
            self.close(CANCELLED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._shut()
        return self._end or "closed"

    async def _read(self, on_frame: Callable[[bytes], None]) -> None:
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                self.close(self._why_closed(message))
                return
            try:
                on_frame(message.data)
            except ProtocolError as error:
                self.close(error.message)
                return

    async def _write(self) -> None:
        while True:
            while self._pending:
                data = self._pending.popleft()
                self._pending_bytes -= len(data)
                if self._emulated_bytes_per_s is not None:
                    await self._take_time(len(data) / self._emulated_bytes_per_s)
                await self._socket.send_bytes(data)
            if self._end is not None:
                return
            self._has_pending.clear()
            await self._has_pending.wait()

    async def _take_time(self, seconds: float) -> None:
        """Wait as long as a frame would be on the emulated wire, behind those before it."""
        now = asyncio.get_running_loop().time()
        self._idle_at_s = max(now, self._idle_at_s) + seconds
        await asyncio.sleep(self._idle_at_s - now)

    async def _close_in_time(self) -> None:
        """A peer that does not read would keep a closing link open, with its loss unreported."""
        await self._is_closing.wait()
        await asyncio.sleep(CLOSE_S)

    def _why_closed(self, message: aiohttp.WSMessage) -> str:
        if (error := self._socket.exception()) is not None:
            return f"the link broke: {str(error) or type(error).__name__}"
        if self._socket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            return "the other end vanished or fell silent"
        return f"the other end closed the link: {message.extra or 'without a reason'}"

    async def _shut(self) -> None:
        """Close the socket; a peer that does not answer is not waited for."""
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close(message=(self._end or "").encode()[:120])
        except (TimeoutError, OSError, aiohttp.ClientError):
            pass


def _heartbeat_s(dead_after_s: float) -> float:
    """The ping interval: a ping is answered within half of it, or the peer is dead."""
    return dead_after_s / 1.5


def check_token(request: web.Request, token: str | None) -> None:
    """UnauthorizedError for web pages, and unless the caller shows the join token, where one is set."""
    if is_from_web_page(request.headers):
        raise UnauthorizedError("web pages cannot join")
    if token is not None and not shows_key(request.headers, (token,)):
        raise UnauthorizedError("wrong or missing join token: set security.join_token as the head has it")


async def accept(
    request: web.Request, token: str | None, dead_after_s: float, emulated_bytes_per_s: float | None = None
) -> Link:
    """The server's end of a link; UnauthorizedError without the right token."""
    check_token(request, token)
    heartbeat_s = _heartbeat_s(dead_after_s)
    socket = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False, heartbeat=heartbeat_s)
    await socket.prepare(request)
    return Link(socket, emulated_bytes_per_s)


async def dial(
    session: aiohttp.ClientSession,
    url: str,
    token: str | None,
    dead_after_s: float,
    emulated_bytes_per_s: float | None = None,
) -> Link:
    """The client's end of a link.

    LinkError where nobody answers, CertificateError for a certificate that is not trusted, UnauthorizedError
    for a wrong token.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            socket = await session.ws_connect(
                url,
                headers=headers,
                max_msg_size=MAX_FRAME_BYTES,
                compress=0,
                heartbeat=_heartbeat_s(dead_after_s),
            )
    except aiohttp.WSServerHandshakeError as error:
        if error.status == UnauthorizedError.status:
            raise UnauthorizedError(
                "the join token was refused: set security.join_token (GODWIT_JOIN_TOKEN) as the head has it"
            ) from error
        raise LinkError(f"{url} answered {error.status}: is it a Godwit head?") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise CertificateError(_why_untrusted(url, error)) from error
    except (TimeoutError, OSError, aiohttp.ClientError) as error:
        raise LinkError(_why_unreachable(url, error)) from error
    return Link(socket, emulated_bytes_per_s)


def _why_untrusted(url: str, error: aiohttp.ClientConnectorCertificateError) -> str:
    why = getattr(error.certificate_error, "verify_message", None) or error.certificate_error
    return (
        f"the certificate of {url} was refused: {why}. It must name the address that is dialled and be of an "
        "authority that this machine trusts; of one of your own, name the PEM file in SSL_CERT_FILE"
    )


def _why_unreachable(url: str, error: Exception) -> str:
    why = f"cannot reach {url}: {str(error) or type(error).__name__}"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"{why}; if it has no certificate, dial it with http://"
    if isinstance(error, aiohttp.ServerDisconnectedError) and url.startswith("http://"):
        return f"{why}; if it has a certificate, dial it with https://"
    return why

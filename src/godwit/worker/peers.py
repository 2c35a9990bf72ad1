"""Links to other workers: dialled where they can be reached, else relayed by the head."""

import asyncio
from collections.abc import Callable

import aiohttp
import structlog
from aiohttp import web

from godwit.config import is_loopback
from godwit.errors import (
    CertificateError,
    GodwitError,
    InvariantBrokenError,
    LinkError,
    ProtocolError,
    UnauthorizedError,
)
from godwit.protocol.messages import KvPart, PeerHello, PeerMessage, Relayed
from godwit.protocol.wire import decode_from_peer, encode
from godwit.runtime.link import Link, accept, dial
from godwit.types import WorkerId

MAX_WAITING = 4096
EVERYWHERE = ("0.0.0.0", "::")
RETRY_DIAL_S = 30.0
_log = structlog.get_logger(__name__)


def peer_url(scheme: str, host: str, port: int, local_host: str | None) -> str | None:
    """Where others reach a worker that listens on `host`; None where they cannot, so that the head relays.

    `local_host` is its address on the way to the head: one that listens everywhere is reached there, and one
    that listens on loopback is reached by nobody when its head is on another machine.
    """
    is_remote = local_host is not None and not is_loopback(local_host)
    if is_remote and is_loopback(host):
        return None
    reached = (local_host or "127.0.0.1") if host in EVERYWHERE else host
    return f"{scheme}://{f'[{reached}]' if ':' in reached else reached}:{port}/peer"


class Peers:
    """All peer links of one worker. Messages to one peer keep their order, whichever way they take."""

    def __init__(
        self,
        me: PeerHello,
        token: str | None,
        dead_after_s: float,
        relay: Callable[[Relayed], None],
        on_message: Callable[[WorkerId, PeerMessage | KvPart], None],
        on_gone: Callable[[WorkerId, str], None],
        emulated_bytes_per_s: float | None = None,
    ) -> None:
        self._me = me
        self._emulated_bytes_per_s = emulated_bytes_per_s
        self._token = token
        self._dead_after_s = dead_after_s
        self._relay = relay
        self._on_message = on_message
        self._on_gone = on_gone
        self._links: dict[WorkerId, Link] = {}
        self._waiting: dict[WorkerId, list[PeerMessage | KvPart]] = {}
        self._unreachable_until_s: dict[str, float] = {}  # by address: a new life of a peer has another
        self._lives: dict[WorkerId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def send(self, peer: WorkerId, url: str | None, message: PeerMessage | KvPart) -> None:
        """Send to `peer` by its link, dialling `url` where there is none yet; without either, by the head."""
        if peer in self._waiting:
            self._wait(peer, message)
        elif (link := self._links.get(peer)) is not None:
            try:
                link.send(encode(message))
            except LinkError as error:
                # Its `run` is about to report the loss; the message is lost with the link.
                _log.info("peer link ended", peer=peer, reason=error.message)
        elif url is not None and self._unreachable_until_s.get(url, 0.0) < self._now():
            self._waiting[peer] = [message]
            self._spawn(self._dial(peer, url))
        else:
            self._send_by_head(peer, message)

    def has_link(self, peer: WorkerId) -> bool:
        """Whether messages of `peer` come by a link of its own."""
        return peer in self._links

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The route `/peer`: another worker dials this one."""
        try:
            link = await accept(request, self._token, self._dead_after_s, self._emulated_bytes_per_s)
        except UnauthorizedError as error:
            _log.warning("peer refused", address=request.remote, reason=error.message)
            raise web.HTTPUnauthorized(text=error.message) from error
        try:
            hello = decode_from_peer(await link.receive_first())
            if not isinstance(hello, PeerHello):
                raise ProtocolError("a peer link starts with PeerHello")
        except (LinkError, ProtocolError) as error:
            _log.warning("peer refused", address=request.remote, reason=error.message)
            await link.refuse(error.message)
            return web.Response()
        self._replace_former_life(hello)
        await self._serve(hello.worker, link)
        return web.Response()

    async def close(self) -> None:
        """End all links."""
        for link in self._links.values():
            link.close("the worker stops")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _replace_former_life(self, hello: PeerHello) -> None:
        """A link to an earlier life of this peer is dead, whether its heartbeat has noticed or not."""
        is_new = hello.incarnation > self._lives.get(hello.worker, 0)
        self._lives[hello.worker] = max(hello.incarnation, self._lives.get(hello.worker, 0))
        if is_new and (former := self._links.pop(hello.worker, None)) is not None:
            former.close("a later life of the peer has dialled")
            self._on_gone(hello.worker, "it has begun a new life")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _send_by_head(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        """Relay a message; KV is lost here as it is with a link, and its receiver does without it."""
        if not isinstance(message, KvPart):
            self._relay(Relayed(peer, message))

    def _wait(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        waiting = self._waiting[peer]
        if len(waiting) >= MAX_WAITING:
            # The caller is in the middle of a move's step: it hears of this as of a broken link, after it.
            waiting.clear()
            reason = f"{MAX_WAITING} messages waited for the link"
            asyncio.get_running_loop().call_soon(self._on_gone, peer, reason)
        waiting.append(message)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, peer: WorkerId, url: str) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            link = await dial(self._session, url, self._token, self._dead_after_s, self._emulated_bytes_per_s)
        except GodwitError as error:
            now = self._now()
            # Each life of a peer has an address of its own: those that are over must not pile up.
            self._unreachable_until_s = {u: t for u, t in self._unreachable_until_s.items() if t > now}
            self._unreachable_until_s[url] = now + RETRY_DIAL_S
            # A peer may be out of reach by design; one that is not trusted is a fault to be mended.
            log = _log.warning if isinstance(error, CertificateError | UnauthorizedError) else _log.info
            log("peer cannot be dialled, relaying through the head", peer=peer, reason=error.message)
            for message in self._waiting.pop(peer):
                self._send_by_head(peer, message)
            return
        link.send(encode(self._me))
        for message in self._waiting.pop(peer):
            link.send(encode(message))
        await self._serve(peer, link)

    async def _serve(self, peer: WorkerId, link: Link) -> None:
        """Read a link to its end. Two workers that dial each other at once have two; each uses its own."""
        is_mine = peer not in self._links
        if is_mine:
            self._links[peer] = link
        reason = "the connection was lost"
        try:
            reason = await link.run(lambda frame: self._take(peer, frame))
        except InvariantBrokenError as error:
            # Nobody awaits this: whoever runs the loop must hear of it (`processes.run`).
            asyncio.get_running_loop().call_exception_handler({"message": str(error), "exception": error})
        finally:
            # One that a later life's link has replaced says nothing about that one.
            is_current = self._links.get(peer) is link
            if is_current:
                del self._links[peer]
            if is_current or not is_mine:
                self._on_gone(peer, reason)

    def _take(self, peer: WorkerId, frame: bytes) -> None:
        message = decode_from_peer(frame)
        if isinstance(message, PeerHello):
            raise ProtocolError("PeerHello came twice")
        self._on_message(peer, message)

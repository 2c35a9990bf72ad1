"""The worker's process: its link to the head, its peers, and the protocol core between them."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial

import aiohttp
import structlog
from aiohttp import web

from godwit.config import Settings, check_listen
from godwit.errors import CertificateError, GodwitError, LinkError, ProtocolError
from godwit.ports import Engine, EngineEvent, Failed
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    Abandon,
    Alive,
    FromHead,
    Hello,
    KvPart,
    Leave,
    Left,
    PeerHello,
    PeerMessage,
    Rejected,
    Relayed,
    Submit,
    Welcome,
)
from godwit.protocol.model_messages import (
    AddModel,
    Load,
    LoadProgress,
    ModelChanged,
    RemoveModel,
    Unload,
)
from godwit.protocol.wire import decode_from_head, encode
from godwit.protocol.worker import WorkerRequests
from godwit.runtime.doors import server_tls
from godwit.runtime.link import Link, dial
from godwit.types import LoadRecord, ModelInfo, ModelName, Tier, WorkerId
from godwit.worker.adding import AddedModels
from godwit.worker.faults import PeerFaults, exit_if_due
from godwit.worker.instances import LocalInstances
from godwit.worker.models import (
    DEVICE_SHARE,
    LocalModel,
    describe_model,
    dram_bytes,
    emulated_tiers,
    machine_bytes,
    open_store,
)
from godwit.worker.peers import Peers, peer_url
from godwit.worker.preparing import Preparing, is_quick
from godwit.worker.progress import LoadWatch
from godwit.worker.store import CheckpointStore

TICK_S = 0.1
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
_log = structlog.get_logger(__name__)


async def run_worker(settings: Settings, join_url: str, name: str) -> None:
    """Serve until the head tells the worker to leave, or until cancelled.

    ConfigError or ModelLoadError where the models cannot be described, UnauthorizedError where the head
    refuses the join token, CertificateError where the worker refuses the head's certificate at its first
    link; a head that cannot be reached is dialled again for ever.
    """
    check_listen("worker.peer_host", settings.worker.peer_host, settings.security, serves_clients=False)
    store = open_store(settings.worker, name)
    models = [await describe_model(model, settings.worker, store) for model in settings.models]
    worker = Worker(WorkerId(name), settings, store, models)
    try:
        await worker.listen()
        await worker.preload()
        await worker.serve(join_url.rstrip("/") + "/link")
    finally:
        await worker.close()


class Worker:
    """One worker: listens for peers, keeps a link to its head, and starts anew after each loss of it."""

    def __init__(
        self,
        name: WorkerId,
        settings: Settings,
        store: CheckpointStore,
        models: Sequence[LocalModel],
    ) -> None:
        self._settings = settings.worker
        self._token = settings.security.join_token
        # Wall-clock nanoseconds: a later life has a larger number, which is all that fencing needs.
        self._me = PeerHello(name, time.time_ns())
        self._device_bytes = self._settings.device_bytes or machine_bytes(DEVICE_SHARE)
        self._store = store
        self._instances = LocalInstances(
            models, store, self._device_bytes, self._on_step, self._on_change, self._on_progress
        )
        self._added = AddedModels(
            settings.models,
            lambda model: describe_model(model, self._settings, store),
            self._instances,
            self._send,
        )
        self._wanted = [
            (model, configured.preload) for model, configured in zip(models, settings.models, strict=True)
        ]
        self._peers = Peers(
            self._me,
            self._token,
            self._settings.dead_after_s,
            self._send,
            self._on_peer,
            self._on_peer_gone,
            self._settings.emulated_bandwidth_bytes_per_s,
        )
        self._requests = WorkerRequests(
            self._instances, self._send, self._peers.send, self._peers.has_link, time.monotonic
        )
        self._peer_faults = PeerFaults(name, self._requests.on_peer)
        self._preparing = Preparing()
        self._link: Link | None = None
        self._runner: web.AppRunner | None = None
        self._peer_port = 0
        self._is_leaving = False
        self._heartbeat_s = 1.0

    async def listen(self) -> None:
        """Open the port for peers; LinkError where it is taken."""
        app = web.Application()
        app.router.add_get("/peer", self._peers.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        host, port = self._settings.peer_host, self._settings.peer_port
        tls = server_tls("worker", self._settings.tls_cert, self._settings.tls_key)
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise LinkError(f"cannot listen on {host}:{port} for peers: {error.strerror}") from error
        self._peer_port = self._runner.addresses[0][1]

    async def preload(self) -> None:
        """Bring the models as near as each is to be and fits, in the order of the configuration.

        So the first request is quick.
        """
        used_bytes = 0
        for model, preload in self._wanted:
            if preload == "dram" and model.file is not None:
                with self._store.using(model.file):
                    await self._store.to_dram(model.file, LoadWatch(), may_evict=False)
            need_bytes = model.info.device_bytes
            if preload != "device" or used_bytes + need_bytes > self._device_bytes:
                continue
            used_bytes += need_bytes
            loaded: asyncio.Future[Engine | GodwitError] = asyncio.get_running_loop().create_future()
            self._instances.load(model.info.name, partial(_tell, loaded))
            result = await loaded
            if isinstance(result, GodwitError):
                raise result

    async def serve(self, url: str) -> None:
        """Stay linked to the head until told to leave."""
        retry_s, has_been_linked = FIRST_RETRY_S, False
        async with aiohttp.ClientSession() as session:
            while not self._is_leaving:
                if not self._is_stalled():
                    try:
                        started_s = time.monotonic()
                        await self._serve_once(session, url)
                        has_been_linked = True
                        if time.monotonic() - started_s > LAST_RETRY_S:
                            # One that ended at once was refused: another worker has this name, say.
                            retry_s = FIRST_RETRY_S
                    except (LinkError, ProtocolError) as error:
                        if isinstance(error, CertificateError) and not has_been_linked:
                            raise  # A setting is wrong. Later it may be a certificate that is being renewed.
                        _log.warning("no link to the head", reason=error.message, retry_s=retry_s)
                if not self._is_leaving:
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def close(self) -> None:
        """Stop everything that this worker started."""
        self._preparing.close()
        self._requests.head_gone()
        await self._added.close()
        await self._peers.close()
        await self._instances.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_once(self, session: aiohttp.ClientSession, url: str) -> None:
        link = await dial(session, url, self._token, self._settings.dead_after_s)
        hello = Hello(
            self._me.worker,
            self._me.incarnation,
            self._settings.slots,
            self._device_bytes,
            self._instances.infos,
            self._peer_url(link.local_host),
            self._settings.emulated_bandwidth_bytes_per_s,
            emulated_tiers(self._settings),
            dram_bytes(self._settings),
            self._instances.loading,
        )
        self._link = link
        self._send(hello)
        beating = asyncio.create_task(self._beat(link))
        # Without it no deadline passes any more: better no link than that.
        beating.add_done_callback(lambda _: link.close("the worker's timer has ended"))
        try:
            reason = await link.run(self._on_frame)
            _log.info("link to the head ended", reason=reason)
        finally:
            self._link = None
            self._preparing.drop_all()
            self._requests.head_gone()
            beating.cancel()
            (error,) = await asyncio.gather(beating, return_exceptions=True)
            if isinstance(error, Exception):
                raise error

    def _peer_url(self, local_host: str | None) -> str | None:
        scheme = "http" if self._settings.tls_cert is None else "https"
        return peer_url(scheme, self._settings.peer_host, self._peer_port, local_host)

    async def _beat(self, link: Link) -> None:
        """Let deadlines pass, and tell the head that this worker is well."""
        loop = asyncio.get_running_loop()
        next_beat_s = 0.0
        with contextlib.suppress(LinkError):
            while True:
                self._requests.tick(time.monotonic())
                if loop.time() >= next_beat_s:
                    link.send(encode(Alive(self._is_stalled())))
                    next_beat_s = loop.time() + self._heartbeat_s
                await asyncio.sleep(TICK_S)

    def _is_stalled(self) -> bool:
        now = time.monotonic()
        starts = (engine.step_started_s for engine in self._instances.engines)
        return any(start is not None and now - start > self._settings.stall_after_s for start in starts)

    def _send(self, message: Message) -> None:
        if self._link is None:
            return
        try:
            self._link.send(encode(message))
        except LinkError as error:
            # The link's own end is about to be handled; the head fences whatever this message was about.
            _log.info("message lost with the link", kind=type(message).__name__, reason=error.message)

    def _on_frame(self, frame: bytes) -> None:
        message: FromHead = decode_from_head(frame)
        exit_if_due(self._me.worker, message)
        match message:
            case Welcome():
                self._heartbeat_s = message.heartbeat_s
            case Submit():
                self._submit(message)
            case Load():
                self._instances.load(message.model, lambda _: None)
            case Unload():
                self._instances.unload(message.model)
            case AddModel():
                self._added.add(message)
            case RemoveModel():
                self._added.remove(message)
            case Relayed(peer, Abandon()) if self._peers.has_link(peer):
                # The peer uses its link, so the head speaks for a dead one. What the peer sent comes first.
                pass
            case Relayed():
                self._requests.on_peer(message.peer, message.message)
            case Leave():
                _log.info("leaving", reason=message.reason)
                self._is_leaving = True
                self._send(Left())
                if self._link is not None:
                    self._link.close(message.reason)
            case _:
                self._requests.on_head(message)

    def _submit(self, order: Submit) -> None:
        """A Stop or a later epoch may overtake a long prompt; the head stops what it no longer wants."""
        engine = self._instances.get(order.model)
        if engine is None or is_quick(order):
            self._requests.on_head(order)
            return

        def refused(error: GodwitError) -> None:
            self._send(Rejected(order.request, order.epoch, error.code, error.message))

        self._preparing.start(order, engine, self._requests.on_head, refused)

    def _on_peer(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        exit_if_due(self._me.worker, message)
        self._peer_faults.take(peer, message)

    def _on_peer_gone(self, peer: WorkerId, reason: str) -> None:
        self._peer_faults.gone(peer)
        self._requests.peer_gone(peer, reason)

    def _on_step(self, events: Sequence[EngineEvent]) -> None:
        self._requests.on_step(events)
        for event in events:
            if isinstance(event, Failed) and event.model is not None:
                self._instances.drop_broken(event.model, event.message)

    def _on_change(self, info: ModelInfo, error: str | None, load: LoadRecord | None) -> None:
        self._send(ModelChanged(info, error, load))

    def _on_progress(self, model: ModelName, tier: Tier, num_bytes: int, total_bytes: int) -> None:
        self._send(LoadProgress(model, tier, num_bytes, total_bytes))


def _tell(waiting: "asyncio.Future[Engine | GodwitError]", result: Engine | GodwitError) -> None:
    if not waiting.done():  # not so where the worker is stopped meanwhile
        waiting.set_result(result)

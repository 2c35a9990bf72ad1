"""A real head in this process, and workers that say what a test has them say."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import aiohttp

from godwit.client import AdminClient, ClusterStatus, Models, decode
from godwit.config import HeadSettings, SecuritySettings, Settings
from godwit.head import run_head
from godwit.protocol.message import Message
from godwit.protocol.messages import Accepted, FromHead, Hello, Left, Submit
from godwit.protocol.model_messages import AddModel, ModelChanged, ModelRemoved, RemoveModel
from godwit.protocol.wire import decode_from_head, encode
from godwit.runtime.link import Link, dial
from godwit.types import ModelInfo, ModelName, Tier, WorkerId

DEADLINE_S = 20.0
GB = 10**9
Script = Callable[[FromHead], Sequence[Message]]


def info(name: str, *, is_loaded: bool = False, tier: Tier = Tier.SSD) -> ModelInfo:
    """A model of two gigabytes whose instance takes three."""
    return ModelInfo(ModelName(name), f"digest of {name}", 4096, 3 * GB, is_loaded, False, 2 * GB, tier)


def obedient(message: FromHead) -> Sequence[Message]:
    """Does what a healthy worker does, but draws no token."""
    match message:
        case AddModel():
            return [ModelChanged(info(message.model.name, tier=Tier.REMOTE))]
        case RemoveModel():
            return [ModelRemoved(message.model)]
        case Submit():
            return [Accepted(message.request, message.epoch, (1, 2, 3))]
        case _:
            return []


class ScriptedWorker:
    """An async context manager: inside it the worker has joined. `heard` is what the head has told it."""

    def __init__(
        self, url: str, name: str, models: Sequence[ModelInfo], script: Script, hello: dict[str, Any]
    ) -> None:
        self._url = url
        self._hello = Hello(
            WorkerId(name),
            **{
                "incarnation": 1,
                "slots": 4,
                "device_bytes": 8 * GB,
                "models": tuple(models),
                "peer_url": None,
                **hello,
            },
        )
        self.heard: list[FromHead] = []
        self.script = script

    async def __aenter__(self) -> "ScriptedWorker":
        self._session = aiohttp.ClientSession()
        self._link: Link = await dial(self._session, f"{self._url}/link", None, DEADLINE_S)
        self.send(self._hello)
        self._running = asyncio.create_task(self._link.run(self._take))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close("the test is over")
        await self._running
        await self._session.close()

    def send(self, message: Message) -> None:
        """Tell the head."""
        self._link.send(encode(message))

    async def leave(self) -> None:
        """Leave on purpose; returns when the head has ended the link."""
        self.send(Left())
        await self._running

    def _take(self, frame: bytes) -> None:
        message = decode_from_head(frame)
        self.heard.append(message)
        for reply in self.script(message):
            self.send(reply)


class Head:
    """A head in this process; leaving it ends its workers, then itself."""

    def __init__(
        self, settings: HeadSettings | None = None, security: SecuritySettings | None = None
    ) -> None:
        head = settings or HeadSettings(port=0)
        self._settings = Settings(head=head, security=security or SecuritySettings())
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Head":
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(run_head(self._settings, listening.set_result))
        self.url = await asyncio.wait_for(listening, DEADLINE_S)
        self.admin = AdminClient(self.url, self._settings.security.admin_key)
        self.session = aiohttp.ClientSession(self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self.admin.close()
        await self.session.close()

    async def stop(self) -> None:
        """End the workers and the head; clients keep their ends of their connections."""
        await self._stack.aclose()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)

    async def join(
        self, name: str, *models: ModelInfo, script: Script = obedient, **hello: Any
    ) -> ScriptedWorker:
        """A worker that has joined; `hello` are fields of its Hello."""
        worker = ScriptedWorker(self.url, name, models, script, hello)
        await self._stack.enter_async_context(worker)
        await self.until(lambda status: any(one.name == name for one in status.workers))
        return worker

    async def until(self, is_so: Callable[[ClusterStatus], bool]) -> ClusterStatus:
        """The first status for which `is_so` holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_so(status := await self.admin.status()):
                pass
        return status

    async def models(self) -> Models:
        """What GET /admin/models says."""
        return decode(await self.admin.models_json(), Models)

    async def metrics(self) -> dict[str, float]:
        """The metrics by name and labels."""
        async with self.session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return {
            key: float(value) for key, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))
        }

    def complete(self, model: str) -> "asyncio.Task[int]":
        """Ask for a completion; gives the status of its answer."""

        async def ask() -> int:
            body = {"model": model, "prompt": "x", "max_tokens": 5}
            async with self.session.post("/v1/completions", json=body) as response:
                return response.status

        return asyncio.create_task(ask())

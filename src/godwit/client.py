"""A small client of the head's admin API: what `godwit status`, `models`, `migrate` and others ask."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Struct

from godwit.admin.shapes import (
    ClusterStatus,
    Estimates,
    Explained,
    ModelAnswers,
    Models,
    ModelStatus,
    RequestStatus,
    WorkerStatus,
)
from godwit.config import ModelSettings
from godwit.costs.report import CostsReport
from godwit.errors import GodwitError, LinkError, UnauthorizedError, from_code
from godwit.protocol.entry import MoveRecord

__all__ = [
    "AdminClient",
    "ClusterStatus",
    "Estimates",
    "Explained",
    "ModelAnswers",
    "ModelStatus",
    "Models",
    "RequestStatus",
    "WorkerStatus",
    "decode",
    "move_record",
]

ADD_S = 660.0
"""A little longer than the head waits for its workers, so that its own words are heard."""

T = TypeVar("T")


class _ErrorBody(Struct, frozen=True):
    message: str
    code: str | None = None


class _Failure(Struct, frozen=True):
    error: _ErrorBody


class AdminClient:
    """An async context manager; raises LinkError where the head cannot be reached, else the head's error.

    `connector` opens its connections where the usual one would not do.
    """

    def __init__(
        self, url: str, key: str | None = None, *, connector: aiohttp.BaseConnector | None = None
    ) -> None:
        self._url = url.rstrip("/")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)

    async def __aenter__(self) -> "AdminClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End its connections."""
        await self._session.close()

    async def status_json(self) -> bytes:
        """The head's status, as the head wrote it."""
        return await self._ask("GET", "/admin/status", None, timeout_s=10.0)

    async def status(self) -> ClusterStatus:
        """The head's status."""
        return decode(await self.status_json(), ClusterStatus)

    async def costs_json(self) -> bytes:
        """What the head's moves cost, as the head wrote it."""
        return await self._ask("GET", "/admin/costs", None, timeout_s=10.0)

    async def costs(self) -> CostsReport:
        """What the head's moves cost."""
        return decode(await self.costs_json(), CostsReport)

    async def estimates_json(self) -> bytes:
        """What the head's starts are chosen from (`Estimates`), as the head wrote it."""
        return await self._ask("GET", "/admin/estimates", None, timeout_s=10.0)

    async def explain_json(self, model: str) -> bytes:
        """Where a request for a model would start now (`Explained`), as the head wrote it."""
        return await self._ask("GET", f"/admin/explain?model={quote(model, safe='')}", None, timeout_s=10.0)

    async def models_json(self) -> bytes:
        """Every model and where it is (`Models`), as the head wrote it."""
        return await self._ask("GET", "/admin/models", None, timeout_s=10.0)

    async def add_model(self, model: ModelSettings) -> bytes:
        """Have all workers serve one more model and wait until they can: `ModelAnswers` in JSON."""
        body = {name: value for name, value in msgspec.to_builtins(model).items() if value is not None}
        return await self._ask("POST", "/admin/models", body, ADD_S)

    async def remove_model(self, name: str) -> bytes:
        """Have all workers forget a model that was added: `ModelAnswers` in JSON."""
        return await self._ask("DELETE", f"/admin/models/{quote(name)}", None, ADD_S)

    async def pin(self, name: str, *, is_pinned: bool) -> bytes:
        """Keep a model's instances on their devices, or let them be evicted again."""
        return await self._ask("POST", f"/admin/models/{quote(name)}/pin", {"pinned": is_pinned}, 10.0)

    async def events(self, since: int = 0, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Decisions after number `since` as lines of JSON; with `follow` those to come too."""
        path = f"/admin/events?since={since}&follow={int(follow)}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=None if follow else 10.0)
        with self._told(timeout.sock_read):
            async with self._session.get(self._url + path, timeout=timeout) as response:
                if response.status >= 400:
                    raise _failure(response.status, await response.read(), self._url)
                async for line in response.content:
                    yield line

    async def owner(self, request: str) -> str | None:
        """The worker that has a request; None where it waits for one or is over."""
        found = (one.worker for one in (await self.status()).requests if one.id == request)
        return next(found, None)

    async def migrate(
        self,
        request: str,
        to: str | None,
        *,
        live: bool = True,
        method: str | None = None,
        force: bool = False,
        timeout_s: float = 600.0,
    ) -> bytes:
        """Move a request to a worker (None: the head chooses) and wait: a MoveRecord in JSON.

        With `live` False the source stops before anything travels. `method` is auto, tokens, kv or split;
        None is the configured one. `force`: also where it could go on only approximately.
        """
        order = {"request": request, "to": to, "live": live, "method": method, "force": force}
        return await self._ask("POST", "/admin/migrate", order, timeout_s)

    async def drain(self, worker: str, deadline_s: float | None) -> None:
        """Have a worker emptied; returns when that has begun."""
        await self._ask("POST", "/admin/drain", {"worker": worker, "deadline_s": deadline_s}, 10.0)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0)
        with self._told(timeout_s):
            async with self._session.request(
                method, self._url + path, json=body, timeout=timeout
            ) as response:
                content = await response.read()
        if response.status >= 400:
            raise _failure(response.status, content, self._url)
        return content

    @contextmanager
    def _told(self, timeout_s: float | None) -> Iterator[None]:
        """What goes wrong on the way to the head, as a LinkError that says what to do."""
        try:
            yield
        except aiohttp.ClientSSLError as error:
            raise LinkError(
                f"{self._url}: no TLS with it ({error}); name its authority in SSL_CERT_FILE"
            ) from error
        except (aiohttp.InvalidURL, ValueError) as error:
            raise LinkError(
                f"{self._url} is no URL of a head; it looks like http://127.0.0.1:8080"
            ) from error
        except TimeoutError as error:
            raise LinkError(
                f"the head at {self._url} did not answer within {timeout_s or 10:.0f} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or error
            raise LinkError(
                f"no head can be reached at {self._url} ({why}); start one with `godwit serve`, "
                "or name another with --url"
            ) from error


def move_record(content: bytes) -> MoveRecord:
    """The answer of `AdminClient.migrate`."""
    return decode(content, MoveRecord)


def decode(content: bytes, kind: type[T]) -> T:
    """A head's answer; LinkError where it is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise LinkError(f"the answer is not that of a Godwit head: {error}") from error


def _failure(status: int, content: bytes, url: str) -> GodwitError:
    try:
        body = msgspec.json.decode(content, type=_Failure).error
    except msgspec.MsgspecError:
        return LinkError(f"{url} answered with status {status}, not as a Godwit head does; check --url")
    if status == UnauthorizedError.status:
        return UnauthorizedError(f"{body.message} (the command line takes it from GODWIT_ADMIN_KEY)")
    return from_code(body.code or "", body.message)

"""A small client of the head's admin API: what `godwit status`, `costs`, `migrate` and `drain` ask."""

from types import TracebackType
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from godwit.costs.report import CostsReport
from godwit.errors import GodwitError, LinkError, UnauthorizedError, from_code
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.eventlog import LogEntry

T = TypeVar("T")


class ModelStatus(Struct, frozen=True):
    """One model on one worker."""

    name: str
    is_loaded: bool = False
    context_tokens: int = 0


class WorkerStatus(Struct, frozen=True):
    """One worker."""

    name: str
    state: str
    slots: int
    used: int
    incarnation: int = 0
    models: tuple[ModelStatus, ...] = ()
    draining: bool = False
    emulated_bandwidth_bytes_per_s: float | None = None


class RequestStatus(Struct, frozen=True):
    """One request that waits or runs; `worker` is None while it waits."""

    id: str
    model: str
    worker: str | None
    state: str
    num_prompt: int = 0
    num_output: int = 0
    epoch: int = 0
    moves: int = 0


class ClusterStatus(Struct, frozen=True):
    """What the head knows now."""

    workers: tuple[WorkerStatus, ...] = ()
    requests: tuple[RequestStatus, ...] = ()
    moves: tuple[MoveRecord, ...] = ()


class _ErrorBody(Struct, frozen=True):
    message: str
    code: str | None = None


class _Failure(Struct, frozen=True):
    error: _ErrorBody


class AdminClient:
    """An async context manager; raises LinkError where the head cannot be reached, else the head's error."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url.rstrip("/")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)

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
        return _decode(await self.status_json(), ClusterStatus)

    async def costs_json(self) -> bytes:
        """What the head's moves cost, as the head wrote it."""
        return await self._ask("GET", "/admin/costs", None, timeout_s=10.0)

    async def costs(self) -> CostsReport:
        """What the head's moves cost."""
        return _decode(await self.costs_json(), CostsReport)

    async def events(self, since: int = 0) -> list[LogEntry]:
        """The scheduler's decisions after number `since`, and what came of them; at the head's clock."""
        content = await self._ask("GET", f"/admin/events?since={since}", None, timeout_s=10.0)
        return [_decode(line, LogEntry) for line in content.splitlines()]

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
        timeout_s: float = 600.0,
    ) -> bytes:
        """Move a request to a worker (None: the head chooses) and wait: a MoveRecord in JSON.

        With `live` False the source stops before anything travels. `method` is auto, tokens, kv or split;
        None is the configured one.
        """
        order = {"request": request, "to": to, "live": live, "method": method}
        return await self._ask("POST", "/admin/migrate", order, timeout_s)

    async def drain(self, worker: str, deadline_s: float | None) -> None:
        """Have a worker emptied; returns when that has begun."""
        await self._ask("POST", "/admin/drain", {"worker": worker, "deadline_s": deadline_s}, 10.0)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0)
        try:
            async with self._session.request(
                method, self._url + path, json=body, timeout=timeout
            ) as response:
                content = await response.read()
        except aiohttp.ClientSSLError as error:
            raise LinkError(
                f"{self._url}: no TLS with it ({error}); name its authority in SSL_CERT_FILE"
            ) from error
        except (aiohttp.InvalidURL, ValueError) as error:
            raise LinkError(
                f"{self._url} is no URL of a head; it looks like http://127.0.0.1:8080"
            ) from error
        except TimeoutError as error:
            raise LinkError(f"the head at {self._url} did not answer within {timeout_s:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or error
            raise LinkError(
                f"no head can be reached at {self._url} ({why}); start one with `godwit serve`, "
                "or name another with --url"
            ) from error
        if response.status >= 400:
            raise _failure(response.status, content, self._url)
        return content


def move_record(content: bytes) -> MoveRecord:
    """The answer of `AdminClient.migrate`."""
    return _decode(content, MoveRecord)


def _decode(content: bytes, kind: type[T]) -> T:
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

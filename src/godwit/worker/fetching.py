"""Fetching a checkpoint by its URL into a file that appears only when it is whole and right."""

import hashlib
import importlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from godwit.errors import ModelLoadError
from godwit.types import Tier
from godwit.worker.progress import CHUNK_BYTES, LoadWatch, Pace
from godwit.worker.threads import in_thread

PART_SUFFIX = ".part"
CONNECT_S = 15.0
# A server that sends nothing for so long is given up.
READ_S = 60.0
HTTP_OK = 200
MakeRoom = Callable[[int], Awaitable[None]]


class Remote(NamedTuple):
    """Where a file can be fetched, and the SHA-256 that it must have; None: the one that the hub names."""

    url: str
    sha256: str | None

    @property
    def shown(self) -> str:
        """The URL for logs and messages: without a password or a signature."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class _Stream(NamedTuple):
    """A file as it comes: `num_bytes` and `sha256` are what it should have, None where that is not known."""

    pieces: AsyncIterator[bytes]
    num_bytes: int | None
    sha256: str | None


async def fetch(remote: Remote, target: Path, make_room: MakeRoom, pace: Pace, watch: LoadWatch) -> str:
    """Write what is at `remote` to `target`, through a temporary file beside it; returns its SHA-256.

    `make_room` is awaited with the bytes that the file will have at least, and may refuse. ModelLoadError
    where the file cannot be had or is another one; then, and when cancelled, nothing is left.
    """
    part = target.with_name(target.name + PART_SUFFIX)
    try:
        with await in_thread(part.open, "wb") as out:
            async with _open(remote) as stream:
                found = await _write(stream, out, make_room, pace, watch)
        if found != stream.sha256:
            raise ModelLoadError(
                f"{remote.shown} has the SHA-256 {found}, not {stream.sha256}: correct models.sha256 if it "
                "is the file that you want"
            )
        await in_thread(part.replace, target)
        return found
    except (OSError, aiohttp.ClientError) as error:
        reason = str(error) or type(error).__name__
        raise ModelLoadError(
            f"cannot fetch {remote.shown}: {reason}; check that this machine reaches it, then try again"
        ) from error
    finally:
        part.unlink(missing_ok=True)


async def _write(stream: _Stream, out: IO[bytes], make_room: MakeRoom, pace: Pace, watch: LoadWatch) -> str:
    digest = hashlib.sha256()
    num_bytes = 0

    def put(block: bytes) -> None:
        digest.update(block)
        out.write(block)

    def finish() -> None:
        out.flush()
        # Pages that are not on the disk yet could not be dropped, and would be gone after a power failure.
        os.fsync(out.fileno())

    async for block in _blocks(stream.pieces, pace.chunk_bytes):
        num_bytes += len(block)
        await make_room(max(num_bytes, stream.num_bytes or 0))
        await in_thread(put, block)
        await pace.moved(len(block))
        watch.moved(Tier.REMOTE, num_bytes, max(num_bytes, stream.num_bytes or 0))
    await in_thread(finish)
    return digest.hexdigest()


async def _blocks(pieces: AsyncIterator[bytes], num_bytes: int) -> AsyncIterator[bytes]:
    """The same bytes in pieces of `num_bytes`, since each costs a thread's turn."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= num_bytes:
            yield bytes(waiting[:num_bytes])
            del waiting[:num_bytes]
    if waiting:
        yield bytes(waiting)


@asynccontextmanager
async def _open(remote: Remote) -> AsyncIterator[_Stream]:
    url, sha256 = remote
    scheme = urlsplit(url).scheme
    if scheme == "file":
        path = Path(unquote(urlsplit(url).path))
        with await in_thread(path.open, "rb") as file:
            yield _Stream(_read(file), os.fstat(file.fileno()).st_size, sha256)
        return
    if scheme == "hf":
        url, found = await in_thread(_look_up, url)
        sha256 = sha256 or found
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
    # What is hashed are the file's own bytes, not what a server packed them into.
    headers = {"Accept-Encoding": "identity"}
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False, headers=headers) as session,
        session.get(url) as response,
    ):
        if response.status != HTTP_OK:
            raise ModelLoadError(f"{remote.shown} answered {response.status}: correct models.url")
        yield _Stream(response.content.iter_chunked(CHUNK_BYTES), response.content_length, sha256)


async def _read(file: IO[bytes]) -> AsyncIterator[bytes]:
    while block := await in_thread(file.read, CHUNK_BYTES):
        yield block


def _look_up(url: str) -> tuple[str, str]:
    """Where the hub has the file hf://ORG/REPO/FILE now, and its SHA-256; blocks."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ModelLoadError(
            f"{url} needs the package huggingface_hub: pip install huggingface_hub"
        ) from error
    org, _, rest = url.removeprefix("hf://").partition("/")
    repository, _, name = rest.partition("/")
    if not (org and repository and name):
        raise ModelLoadError(f"{url} is not of the form hf://ORG/REPO/FILE: correct models.url")
    found = hub.get_hf_file_metadata(hub.hf_hub_url(f"{org}/{repository}", name))
    if not re.fullmatch("[0-9a-f]{64}", found.etag or ""):
        raise ModelLoadError(f"the hub does not know the SHA-256 of {url}: set models.sha256")
    return found.location, found.etag

"""Model files for tests of the store: their content, their pages, and a server that hands them out."""

import asyncio
import ctypes
import hashlib
import mmap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from godwit.worker.fetching import Remote
from godwit.worker.residency import drop_pages

MB = 1_000_000


def content(seed: int, num_bytes: int = MB) -> bytes:
    """What a model file might have in it; each seed another."""
    return np.random.default_rng(seed).bytes(num_bytes)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, seed: int, num_bytes: int = MB) -> Path:
    """A file on the disk, and not in memory."""
    path.write_bytes(content(seed, num_bytes))
    drop_pages(path)
    return path


def needs_page_cache(folder: Path) -> None:
    """Skip the test where files cannot leave memory."""
    probe = write(folder / "probe", 1)
    if resident_share(probe) > 0:
        pytest.skip(f"files in {folder} stay in memory when they are dropped: is it a tmpfs?")
    probe.unlink()


def resident_share(path: Path) -> float:
    """Which share of a file's pages is in memory now."""
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
    address = np.frombuffer(view, dtype=np.uint8).ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(view)), pages) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    view.close()
    return sum(page & 1 for page in pages) / len(pages)


def locked_bytes() -> int:
    """How much memory this process has locked."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmLck"))
    return int(line.split()[1]) * 1024


class Shop:
    """Hands out files over http; the first `num_cuts` answers end halfway."""

    def __init__(self, *files: bytes, num_cuts: int = 0) -> None:
        self._files = {f"/{number}": data for number, data in enumerate(files)}
        self._num_cuts = num_cuts
        self.url = ""
        self.num_asked = 0

    def remote(self, number: int = 0, wanted: str | None = None) -> Remote:
        """Where the file is, and the SHA-256 that it has unless another one is `wanted`."""
        return Remote(f"{self.url}/{number}", wanted or sha256(self._files[f"/{number}"]))

    async def _hand_out(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        data = self._files.get(request.path)
        if data is None:
            raise web.HTTPNotFound
        response = web.StreamResponse()
        response.content_length = len(data)
        await response.prepare(request)
        if self._num_cuts > 0:
            self._num_cuts -= 1
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(data)
        return response


@asynccontextmanager
async def opened(shop: Shop) -> AsyncIterator[Shop]:
    """The shop, open for the block."""
    app = web.Application()
    app.router.add_get("/{name}", shop._hand_out)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    shop.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield shop
    finally:
        await runner.cleanup()


def names(folder: Path) -> list[str]:
    """What is in a folder, if there is one."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what nobody tells, such as how large a file is by now."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 -- as it says
            await asyncio.sleep(0.001)

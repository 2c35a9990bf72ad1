"""The checkpoint store of a worker: where each model file is, and its way from tier to tier.

Each tier has one way out, and loads take turns on it, first come, first served: two loads from SSD come one
after the other, and a load from DRAM passes them both.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import structlog

from godwit.engines.checkpoints import remember_digest
from godwit.errors import ModelLoadError
from godwit.types import Tier
from godwit.worker.fetching import PART_SUFFIX, Remote, fetch
from godwit.worker.progress import LoadWatch, Pace
from godwit.worker.residency import Resident, drop_pages, raise_lock_limit
from godwit.worker.threads import in_thread

_KEY = re.compile("[0-9a-f]{64}")
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class StoredFile:
    """One model file; `remote` is None for one that is used where it is, `num_bytes` 0 until it is known.

    `num_loads` and `num_instances` are those that use it now.
    """

    path: Path
    remote: Remote | None
    is_fetched: bool
    is_here: bool = False
    num_bytes: int = 0
    num_loads: int = 0
    num_instances: int = 0
    last_use: int = 0
    resident: Resident | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether it must stay on the disk."""
        return bool(self.num_loads or self.num_instances or self.resident)

    @property
    def tier(self) -> Tier:
        """The nearest one that has it, below the device."""
        if self.resident is not None:
            return Tier.DRAM
        return Tier.SSD if self.is_here or self.remote is None else Tier.REMOTE


class CheckpointStore:
    """Files of models in three tiers, within `dram_bytes` and `ssd_bytes`; used by one event loop.

    Fetched files are in `folder`, by their SHA-256. `rates` slows tiers down, in bytes/s.
    `on_tier` is called with a file that has come to another tier.
    """

    def __init__(
        self, folder: Path, dram_bytes: int, ssd_bytes: int, rates: Mapping[Tier, float] | None = None
    ) -> None:
        self.folder = folder
        self.on_tier: Callable[[StoredFile], None] = lambda _: None
        self._dram_bytes = dram_bytes
        self._ssd_bytes = ssd_bytes
        self._rates = dict(rates or {})
        self._files: dict[Path, StoredFile] = {}
        self._ways = {tier: asyncio.Lock() for tier in (Tier.REMOTE, Tier.SSD, Tier.DRAM)}
        self._uses = count(1)
        raise_lock_limit()
        self._take_stock()

    def _take_stock(self) -> None:
        """Find the files of an earlier life, least recently used first, and remove what it left half done."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob(f"*{PART_SUFFIX}"):
            path.unlink()
        found = [path.absolute() for path in self.folder.iterdir() if _KEY.fullmatch(path.name)]
        for path in sorted(found, key=lambda one: one.stat().st_atime_ns):
            num_bytes, last_use = path.stat().st_size, next(self._uses)
            self._files[path] = StoredFile(path, None, True, True, num_bytes, last_use=last_use)

    def in_place(self, path: Path) -> StoredFile:
        """The file at `path`, which is used where it is."""
        path = path.absolute()
        return self._files.setdefault(path, StoredFile(path, None, is_fetched=False))

    def fetched(self, remote: Remote, key: str) -> StoredFile:
        """The file that is, or will be, fetched from `remote` and kept under `key`."""
        path = (self.folder / key).absolute()
        file = self._files.setdefault(path, StoredFile(path, remote, is_fetched=True))
        file.remote = remote
        return file

    @contextmanager
    def using(self, file: StoredFile) -> Iterator[None]:
        """Keep a file in the tiers that it is in, for the block."""
        file.last_use = next(self._uses)
        file.num_loads += 1
        try:
            yield
        finally:
            file.num_loads -= 1

    async def to_ssd(self, file: StoredFile, watch: LoadWatch) -> None:
        """Fetch a file unless it is here; ModelLoadError where that fails. Call it inside `using`."""
        if file.is_here or file.remote is None:
            return
        async with watch.turn(self._ways[Tier.REMOTE]):
            if file.is_here:
                return
            watch.begins(Tier.REMOTE)
            await self._fetch(file, file.remote, watch)
        self.on_tier(file)

    async def to_dram(self, file: StoredFile, watch: LoadWatch, *, may_evict: bool = True) -> None:
        """Read a file into memory, and keep it there if the budget allows. Call it inside `using`.

        Without `may_evict` it is not even read unless there is room.
        """
        if file.resident is not None:
            return
        await self.to_ssd(file, watch)
        async with watch.turn(self._ways[Tier.SSD]):
            if file.resident is not None:
                return
            await in_thread(_look, file)
            if not (may_evict or self._has_dram_room(file)):
                return
            if watch.tier is None:
                # What the page cache has left over from other uses would make the SSD look fast.
                await in_thread(drop_pages, file.path)
            watch.begins(Tier.SSD)
            has_room = await self._make_dram_room(file)
            await self._read(file, Tier.SSD, watch)
            if has_room:
                file.resident = await in_thread(_map, file.path)
        if file.resident is not None:
            self.on_tier(file)

    @asynccontextmanager
    async def to_device(self, file: StoredFile, watch: LoadWatch) -> AsyncIterator[None]:
        """Bring a file near, then hold the way to the device for the block, which makes the engine.

        The engine counts as a user of the file until `left_device`. ModelLoadError where the file cannot be
        had.
        """
        with self.using(file):
            await self.to_dram(file, watch)
            async with watch.turn(self._ways[Tier.DRAM]):
                watch.begins(Tier.DRAM)
                await self._read(file, Tier.DRAM, watch)
                yield
                file.num_instances += 1

    async def left_device(self, file: StoredFile) -> None:
        """An instance of this file has closed; its pages go where DRAM does not hold them."""
        file.num_instances -= 1
        await self._drop_pages(file)

    async def forget(self, file: StoredFile) -> None:
        """No model has this file any more: free its memory. A fetched one stays until its room is needed."""
        if file.num_loads == 0:
            await self._leave_dram(file)

    async def close(self) -> None:
        """Free all memory; nothing may be called after it."""
        for file in self._files.values():
            if file.resident is not None:
                await in_thread(file.resident.close)
                file.resident = None

    # --- the three ways -------------------------------------------------------------------------------------

    async def _fetch(self, file: StoredFile, remote: Remote, watch: LoadWatch) -> None:
        async def make_room(num_bytes: int) -> None:
            await self._make_ssd_room(file, num_bytes)

        await in_thread(self._make_folder)
        pace = Pace(self._rates.get(Tier.REMOTE))
        sha256 = await fetch(remote, file.path, make_room, pace, watch)
        await in_thread(remember_digest, file.path, sha256)
        file.is_here, file.num_bytes = True, file.path.stat().st_size
        _log.info("fetched", url=remote.shown, num_bytes=file.num_bytes)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelLoadError(
                f"cannot make the folder {self.folder}: {error.strerror}; set worker.checkpoint_dir"
            ) from error

    async def _read(self, file: StoredFile, tier: Tier, watch: LoadWatch) -> None:
        """Pass over the whole file, so that its pages are in memory; no faster than `tier` is emulated."""
        pace = Pace(self._rates.get(tier))
        buffer = bytearray(pace.chunk_bytes)
        done = 0
        try:
            opened = await in_thread(os.open, file.path, os.O_RDONLY)
            try:
                while num_read := await in_thread(os.preadv, opened, [buffer], done):
                    done += num_read
                    await pace.moved(num_read)
                    watch.moved(tier, done, file.num_bytes)
            finally:
                os.close(opened)
        except OSError as error:
            raise ModelLoadError(f"cannot read {file.path}: {error.strerror}") from error
        if not done:
            raise ModelLoadError(f"{file.path} is empty: put the model file there")

    # --- budgets --------------------------------------------------------------------------------------------

    def _resident(self) -> list[StoredFile]:
        return [file for file in self._files.values() if file.resident is not None]

    def _has_dram_room(self, file: StoredFile) -> bool:
        return _bytes(self._resident()) + file.num_bytes <= self._dram_bytes

    async def _make_dram_room(self, file: StoredFile) -> bool:
        """Evict the least recently used until the file fits; False where it cannot."""
        while not self._has_dram_room(file):
            # Looked up anew each time: while one was freed, a load of the next may have begun.
            idle = [one for one in self._resident() if not one.num_loads]
            pinned = [one for one in self._resident() if one.num_loads]
            if _bytes(pinned) + file.num_bytes > self._dram_bytes:
                return False
            await self._leave_dram(min(idle, key=_last_use))
        return True

    async def _make_ssd_room(self, file: StoredFile, num_bytes: int) -> None:
        """The same for a fetched file, of which so much is known; ModelLoadError where it cannot fit."""
        while True:
            kept = [one for one in self._files.values() if one.is_fetched and one.is_here]
            in_use = [one for one in kept if one.is_in_use]
            if _bytes(in_use) + num_bytes > self._ssd_bytes:
                raise ModelLoadError(
                    f"no room for {file.path.name} of {num_bytes} bytes or more: worker.ssd_bytes is "
                    f"{self._ssd_bytes}, and checkpoints in use take {_bytes(in_use)} of them; raise it"
                )
            if _bytes(kept) + num_bytes <= self._ssd_bytes:
                return
            await self._leave_ssd(min((one for one in kept if not one.is_in_use), key=_last_use))

    async def _leave_ssd(self, file: StoredFile) -> None:
        file.is_here = False
        # Renamed before anybody else can look for it; taking a large file off the disk may take a while.
        going = file.path.rename(file.path.with_name(file.path.name + PART_SUFFIX))
        await in_thread(going.unlink)
        _log.info("evicted", path=str(file.path), tier=Tier.SSD)
        self.on_tier(file)

    async def _leave_dram(self, file: StoredFile) -> None:
        if (resident := file.resident) is None:
            return
        file.resident = None
        await in_thread(resident.close)
        _log.info("evicted", path=str(file.path), tier=Tier.DRAM)
        await self._drop_pages(file)
        self.on_tier(file)

    async def _drop_pages(self, file: StoredFile) -> None:
        if file.resident is None and not file.num_instances and not file.num_loads:
            await in_thread(drop_pages, file.path)


def _last_use(file: StoredFile) -> int:
    return file.last_use


def _bytes(files: list[StoredFile]) -> int:
    return sum(file.num_bytes for file in files)


def _look(file: StoredFile) -> None:
    """See how large a file is, and that it is still there: ModelLoadError; blocks."""
    try:
        stat = file.path.stat()
        if file.is_fetched:
            # The order of use outlives the worker; the time of change must stay, since digests go by it.
            os.utime(file.path, ns=(time.time_ns(), stat.st_mtime_ns))
    except OSError as error:
        file.is_here = False
        cure = "load it again to fetch it anew" if file.is_fetched else "put it back"
        raise ModelLoadError(f"cannot read the model file {file.path} ({error.strerror}): {cure}") from error
    file.num_bytes = stat.st_size


def _map(path: Path) -> Resident:
    try:
        return Resident(path)
    except OSError as error:
        raise ModelLoadError(f"cannot map {path} into memory: {error.strerror}") from error

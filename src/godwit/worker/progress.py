"""One load's measures: where it began, how long it waited, how far it is; and emulated bandwidths."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from godwit.types import LoadRecord, Tier

CHUNK_BYTES = 8 * 1024 * 1024
MIN_CHUNK_BYTES = 4096
# On an emulated tier a chunk is what it moves in this time, so that progress is told and a load can end.
CHUNK_S = 0.1
REPORT_EVERY_S = 0.2


class Pace:
    """Keeps one transfer down to `bytes_per_s`; None: as fast as it goes."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._started_s = time.monotonic()
        self._num_bytes = 0

    @property
    def chunk_bytes(self) -> int:
        """How much to move before the next `moved`."""
        if self._bytes_per_s is None:
            return CHUNK_BYTES
        return min(CHUNK_BYTES, max(MIN_CHUNK_BYTES, int(self._bytes_per_s * CHUNK_S)))

    async def moved(self, num_bytes: int) -> None:
        """Wait until so many more bytes may have been moved; what moving them took counts."""
        self._num_bytes += num_bytes
        if self._bytes_per_s is not None:
            due_s = self._started_s + self._num_bytes / self._bytes_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


class LoadWatch:
    """Watches one load from its start; `report` gets a tier, the bytes that have left it, and all bytes.

    `tier` is where the checkpoint was when bytes began to move, None before that.
    """

    def __init__(self, report: Callable[[Tier, int, int], None] = lambda *_: None) -> None:
        self.tier: Tier | None = None
        self._report = report
        self._reported_s = -REPORT_EVERY_S
        self._started_s = time.monotonic()
        self._queue_s = 0.0

    @asynccontextmanager
    async def turn(self, path: asyncio.Lock) -> AsyncIterator[None]:
        """Hold a path for the block; waiting for it counts as queueing. First come, first served."""
        asked_s = time.monotonic()
        async with path:
            self._queue_s += time.monotonic() - asked_s
            yield

    def begins(self, tier: Tier) -> None:
        """Bytes begin to move out of `tier`; the first tier of a load is the one that it was found in."""
        if self.tier is None:
            self.tier = tier

    def moved(self, tier: Tier, num_bytes: int, total_bytes: int) -> None:
        """So much has left `tier` by now; told at most every `REPORT_EVERY_S`."""
        now = time.monotonic()
        if now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self._report(tier, num_bytes, total_bytes)

    def record(self, num_bytes: int) -> LoadRecord:
        """The load as it went, to be taken when it is over."""
        seconds = time.monotonic() - self._started_s - self._queue_s
        return LoadRecord(self.tier or Tier.DRAM, num_bytes, self._queue_s, seconds)

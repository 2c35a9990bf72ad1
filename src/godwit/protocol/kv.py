"""The KV of a move on its way between two workers: chunks, a window, a digest. No I/O.

The destination asks for what it lacks (`KvWanted`), the source keeps at most WINDOW_BYTES under way, and the
last chunk carries a digest over the KV and everything that it depends on.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from godwit.protocol.messages import KvPart
from godwit.types import KvOffer, KvReport, MoveId, TokenId

CHUNK_BYTES = 512 * 1024
WINDOW_BYTES = 2 * CHUNK_BYTES
MAX_KV_BYTES = 1 << 30
SILENCE_S = 5.0
"""A destination that has heard nothing of the KV for so long computes it itself."""


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


def start_digest(checkpoint: str, offer: KvOffer, ids: Sequence[TokenId]) -> _Hash:
    """A hash that has taken in whose KV it is: the checkpoint, the layout, the range, all tokens up to it."""
    taken = hashlib.blake2b(digest_size=32)
    context = ",".join(map(str, ids[: offer.kv.last]))
    taken.update(f"{checkpoint}|{offer.layout}|{offer.kv.first}|{context}|".encode())
    return taken


@dataclass(slots=True)
class KvSending:
    """The source's side, from the offer to the destination's last word on it."""

    move: MoveId
    offer: KvOffer
    digest: _Hash
    started_s: float
    give_up_s: float
    data: bytearray | None = None
    is_asked: bool = False
    is_over: bool = False
    num_sent: int = 0
    num_wanted: int = 0

    def parts(self) -> Iterator[KvPart]:
        """The chunks that may be sent now: none beyond the window."""
        while self.data is not None and self.num_sent < len(self.data):
            first, total = self.num_sent, len(self.data)
            last = min(first + CHUNK_BYTES, total)
            if last > self.num_wanted + WINDOW_BYTES:
                return
            chunk = memoryview(self.data)[first:last]
            self.digest.update(chunk)
            self.num_sent = last
            digest = self.digest.digest() if last == total else b""
            yield KvPart(self.move, first, total, chunk, digest)

    def end(self, now: float, problem: str | None) -> KvReport:
        """Drop the KV, and say what became of it."""
        self.data, self.is_over = None, True
        return KvReport(self.offer.kv, self.num_sent, now - self.started_s, problem)


@dataclass(slots=True)
class KvReceiving:
    """The destination's side: one buffer as large as the KV, filled in order."""

    offer: KvOffer
    digest: _Hash
    heard_s: float
    data: bytearray = field(default_factory=bytearray)
    num_received: int = 0
    is_whole: bool = False

    def take(self, part: KvPart, now: float) -> str | None:
        """Put a chunk where it belongs; what is wrong with it, if anything. A repeated one is skipped."""
        if part.offset < self.num_received or self.is_whole:
            return None
        end = part.offset + len(part.data)
        if not self.data and 0 < part.total <= MAX_KV_BYTES:
            self.data = bytearray(part.total)
        is_next = part.offset == self.num_received and len(part.data) > 0
        if not is_next or part.total != len(self.data) or end > part.total:
            return f"a chunk of {len(part.data)} bytes came for {part.offset} of {part.total}"
        self.heard_s = now
        # A view takes the bytes without a copy of them.
        memoryview(self.data)[part.offset : end] = part.data
        self.digest.update(part.data)
        self.num_received = end
        self.is_whole = end == part.total
        if self.is_whole and part.digest != self.digest.digest():
            return "its digest is wrong"
        return None

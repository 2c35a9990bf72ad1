"""The KV of a move on its way between two workers: blocks of tokens, chunks, a window, digests. No I/O.

The destination says how many bytes it has (`KvWanted`), and the source keeps at most WINDOW_BYTES under way.
A block is the KV of a range of tokens; its last chunk carries a digest over it and all that it depends on.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from godwit.protocol.messages import KvPart
from godwit.types import KvOffer, KvRange, MoveId, TokenId

CHUNK_BYTES = 512 * 1024
WINDOW_BYTES = 2 * CHUNK_BYTES
AHEAD_BYTES = 32 * 1024 * 1024
"""Exported and not sent: what the link takes while the engine is in one step."""
MAX_BLOCK_BYTES = 1 << 30
MIN_TAIL_TOKENS = 8
"""What was drawn since, and is fewer than this, is computed."""
SILENCE_S = 5.0
"""A destination that has heard nothing of the KV for so long computes it itself."""


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


class BlockDigests:
    """The digests of one move's blocks: they cover checkpoint, layout, tokens and range too."""

    def __init__(self, checkpoint: str, offer: KvOffer, ids: Sequence[TokenId]) -> None:
        context = f"{checkpoint}|{offer.layout}|{_text(ids[: offer.kv.last])}"
        self._context = hashlib.blake2b(context.encode(), digest_size=32).digest()

    def start(self, kv: KvRange, ids: Sequence[TokenId]) -> _Hash:
        """A hash that has taken in all but the KV; `ids` are all tokens of the request."""
        block = f"{kv.first}|{_text(ids[kv.first : kv.last])}"
        return hashlib.blake2b(self._context + block.encode(), digest_size=32)


def _text(ids: Sequence[TokenId]) -> str:
    return ",".join(map(str, ids))


@dataclass(slots=True)
class _Block:
    kv: KvRange
    data: bytearray
    digest: _Hash
    num_sent: int = 0


@dataclass(slots=True)
class KvSending:
    """The source's side, from the offer to the destination's last word on it.

    `ranges` says what to export next, `exported` takes it, `parts` is what may be sent. In order the KV goes
    in rounds, like tokens: what was drawn during one is the next, if that is at most half as long.
    """

    move: MoveId
    offer: KvOffer
    ships_tail: bool
    digests: BlockDigests
    give_up_s: float
    is_asked: bool = False
    is_over: bool = False
    num_sent: int = 0
    num_acked: int = 0
    _blocks: deque[_Block] = field(default_factory=deque)
    _exporting: deque[KvRange] = field(default_factory=deque)
    _token_bytes: float = AHEAD_BYTES  # until a block is here nobody knows
    _next: int = field(init=False)
    _round: KvRange = field(init=False)

    def __post_init__(self) -> None:
        self._round = self.offer.kv
        self._next = self.offer.kv.last if self._is_backward else self.offer.kv.first

    @property
    def _is_backward(self) -> bool:
        return self.offer.share > 0

    def ranges(self, num_computed: int) -> Iterator[KvRange]:
        """What to export now; the source has KV of `num_computed` tokens."""
        while self.is_asked and not self.is_over and self._has_room():
            if (kv := self._next_range(num_computed)) is None:
                return
            self._exporting.append(kv)
            yield kv

    def is_exporting(self, kv: KvRange) -> bool:
        """Whether this is what the engine copies next; else an earlier move of the request had asked."""
        return bool(self._exporting) and self._exporting[0] == kv

    def exported(self, kv: KvRange, data: bytearray, ids: Sequence[TokenId]) -> None:
        """The engine has copied the range that it was to copy next; `ids` are all tokens of the request."""
        self._exporting.popleft()
        if not self.is_over:
            self._token_bytes = len(data) / (kv.last - kv.first)
            self._blocks.append(_Block(kv, data, self.digests.start(kv, ids)))

    def parts(self) -> Iterator[KvPart]:
        """The chunks that may be sent now: none beyond the window."""
        while self._blocks:
            block = self._blocks[0]
            first, total = block.num_sent, len(block.data)
            last = min(first + CHUNK_BYTES, total)
            if self.num_sent + last - first > self.num_acked + WINDOW_BYTES:
                return
            chunk = memoryview(block.data)[first:last]
            block.digest.update(chunk)
            block.num_sent = last
            self.num_sent += last - first
            if last == total:
                self._blocks.popleft()
            digest = block.digest.digest() if last == total else b""
            yield KvPart(self.move, block.kv, first, total, chunk, digest)

    @property
    def is_all_sent(self) -> bool:
        """Whether no block is at the engine or waits to be sent."""
        return not self._blocks and not self._exporting

    def end(self) -> None:
        """Drop what is left."""
        self.is_over = True
        self._blocks.clear()

    def _has_room(self) -> bool:
        waiting = sum(len(block.data) - block.num_sent for block in self._blocks)
        coming = sum(kv.last - kv.first for kv in self._exporting) * self._token_bytes
        return self.is_all_sent or waiting + coming < AHEAD_BYTES

    def _next_range(self, num_computed: int) -> KvRange | None:
        size = self.offer.block_tokens
        if self._is_backward:
            if self._next <= self._round.first:
                return None
            first = max(block_start(self._next, size), self._round.first)
            kv, self._next = KvRange(first, self._next), first
            return kv
        if self._next >= self._round.last and not self._begins_round(num_computed):
            return None
        kv = KvRange(self._next, min(self._next + size, self._round.last))
        self._next = kv.last
        return kv

    def _begins_round(self, num_computed: int) -> bool:
        """Whether to ship what was drawn since, once all before it is sent: then it is all that there is."""
        tail = num_computed - self._round.last
        is_shorter = tail <= (self._round.last - self._round.first) / 2
        if not (self.ships_tail and self.is_all_sent and is_shorter and tail >= MIN_TAIL_TOKENS):
            return False
        self._round = KvRange(self._round.last, num_computed)
        return True


def block_start(end: int, block_tokens: int) -> int:
    """Where the block that ends before `end` begins: at a multiple of the size."""
    return (end - 1) // block_tokens * block_tokens


@dataclass(slots=True)
class KvReceiving:
    """The destination's side: one block at a time, filled in order; `num_received` bytes in all."""

    offer: KvOffer
    digests: BlockDigests
    heard_s: float
    num_received: int = 0
    is_all: bool = False
    _next: int = field(init=False)
    _kv: KvRange | None = None
    _data: bytearray = field(default_factory=bytearray)
    _num_filled: int = 0
    _digest: _Hash | None = None

    def __post_init__(self) -> None:
        self._next = self.offer.kv.last if self.offer.share > 0 else self.offer.kv.first

    def take(
        self, part: KvPart, num_tokens: int, ids: Callable[[], Sequence[TokenId]], now: float
    ) -> tuple[KvRange, bytearray] | str | None:
        """Put a chunk where it belongs; a block that it completes, or what is wrong with the chunk.

        A chunk that comes again is skipped. `ids` gives the `num_tokens` tokens known of the request.
        """
        if self._has(part):
            return None
        if not self._is_next(part, num_tokens):
            return f"a chunk of {len(part.data)} bytes came for {part.offset} of {part.total} of {part.kv}"
        if self._kv is None or self._digest is None:
            self._kv, self._data, self._num_filled = part.kv, bytearray(part.total), 0
            self._digest = self.digests.start(part.kv, ids())
        end = part.offset + len(part.data)
        # A view takes the bytes without a copy of them.
        memoryview(self._data)[part.offset : end] = part.data
        self._digest.update(part.data)
        self._num_filled, self.heard_s = end, now
        self.num_received += len(part.data)
        if end < part.total:
            return None
        if part.digest != self._digest.digest():
            return "its digest is wrong"
        block = (self._kv, self._data)
        self._next = self._kv.first if self.offer.share > 0 else self._kv.last
        self._kv, self._data, self._digest = None, bytearray(), None
        return block

    def _has(self, part: KvPart) -> bool:
        if self._kv is not None and part.kv == self._kv:
            return part.offset < self._num_filled
        return part.kv.first >= self._next if self.offer.share > 0 else part.kv.last <= self._next

    def _is_next(self, part: KvPart, num_tokens: int) -> bool:
        kv, end = part.kv, part.offset + len(part.data)
        fits = part.offset == self._num_filled and len(part.data) > 0 and end <= part.total
        if self._kv is not None:
            return kv == self._kv and part.total == len(self._data) and fits
        starts = part.offset == 0 and 0 < len(part.data) <= part.total <= MAX_BLOCK_BYTES
        if self.offer.share > 0:
            first = max(block_start(self._next, self.offer.block_tokens), self.offer.kv.first)
            return starts and kv == KvRange(first, self._next)
        is_block = self._next == kv.first < kv.last <= kv.first + self.offer.block_tokens
        # The last token's own pass makes the logits.
        return starts and is_block and kv.last < num_tokens

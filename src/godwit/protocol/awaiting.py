"""KV that a sequence awaits, and how far it computes meanwhile. Pure."""

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from godwit.types import KvOffer, KvRange


class Block(NamedTuple):
    """The KV of one range, as the other end exported it."""

    kv: KvRange
    data: bytearray


@dataclass(slots=True)
class AwaitedKv:
    """What is known of offered KV: which blocks are here and not taken, and whether more may come.

    With a share of 0 blocks come in order. Else they come from the end backwards, so that those that are here
    follow one another up to the end, and the sequence computes towards them from its front.
    """

    offer: KvOffer
    is_over: bool = False
    _arrived: deque[Block] = field(default_factory=deque)

    def put(self, block: Block) -> None:
        """One more block is here."""
        if self.offer.share > 0:
            self._arrived.appendleft(block)
        else:
            self._arrived.append(block)

    def take(self, num_computed: int) -> Block | None:
        """The block that follows the computed tokens, if it is here; what came too late is dropped."""
        while self._arrived and self._arrived[0].kv.first < num_computed:
            self._arrived.popleft()
        if self._arrived and self._arrived[0].kv.first == num_computed:
            return self._arrived.popleft()
        return None

    def is_done(self, num_computed: int) -> bool:
        """Whether nothing is awaited any more; in order, more may follow what was offered."""
        is_met = self.offer.share > 0 and num_computed >= self.offer.kv.last
        return not self._arrived and (self.is_over or is_met)

    def limit(self, num_computed: int, goal: int) -> int:
        """How far to compute now, at most to `goal`: see `KvPlan` for what the share means.

        The way to the KV that is here is gone in steps that end where blocks do, since half a block is of no
        use: half of what is expected at a time, for the link may be quicker than that. Where this sequence's
        part is less than half a block, the next block is waited for.
        """
        first = self._arrived[0].kv.first if self._arrived else None
        if self.is_over:
            return goal if first is None else min(goal, first)
        kv, size = self.offer.kv, self.offer.block_tokens
        if self.offer.share == 0:
            return max(num_computed, kv.first)
        end = kv.last if first is None else first
        missing = end - num_computed
        if missing < size:
            return end
        part = ceil(missing * self.offer.share)
        if part < size / 2:
            return num_computed
        step = max(part // 2, size)
        return min((num_computed + step) // size * size, end)

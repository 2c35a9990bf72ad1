"""How to move a context: ship its KV, recompute it from its tokens, or both at once.

With a context of c tokens, the destination's prefill rate p (tokens/s), the link B = min(B_i, B_j) (bytes/s)
and S(n) the KV bytes of the most recent n tokens (kv · n for full attention):

    transfer(c)  = O_t + S(c) / B
    recompute(c) = O_r + c / p
    split(c)     = min over x of max(O_t + S(x) / B, O_r + (c - x) / p)

The last one ships the KV of the last x tokens while the destination computes the first c - x. Source:
docs/costs.md, which also says what the formulas leave out.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import assert_never

from msgspec import Struct

from godwit.costs.kv import KvSize

_BITS_PER_BYTE = 8

LINKS: Mapping[str, float] = MappingProxyType(
    {"wan": 100e6 / _BITS_PER_BYTE, "lan": 10e9 / _BITS_PER_BYTE, "rdma": 200e9 / _BITS_PER_BYTE}
)
"""Bytes/s of the link classes: WAN 100 Mbit/s, LAN 10 Gbit/s, RDMA 200 Gbit/s."""


class Method(StrEnum):
    """What travels: token ids only, all of the KV, or the KV of a suffix while the prefix is recomputed."""

    TOKENS = "tokens"
    KV = "kv"
    SPLIT = "split"


ALL_METHODS = tuple(Method)


class Server(Struct, frozen=True):
    """One server as it serves one model: prefill rate (tokens/s), its end of a link (bytes/s), the KV's size.

    ValueError where a rate is not above 0; a bandwidth may be infinite.
    """

    prefill_tps: float
    bandwidth_bytes_per_s: float
    kv: KvSize

    def __post_init__(self) -> None:
        if not 0 < self.prefill_tps < math.inf:
            raise ValueError(f"prefill_tps is a number above 0, not {self.prefill_tps}")
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s is above 0, not {self.bandwidth_bytes_per_s}")


class Plan(Struct, frozen=True):
    """How to move a context, and the seconds from the start until the destination has all of its KV.

    The KV of the last `shipped_tokens` travels in `shipping_s`, the destination computes that of the tokens
    before them in `computing_s`, both at the same time, overheads included; 0 where there is nothing to do.
    `ships_tail`: what is drawn meanwhile is shipped sooner than computed.
    """

    method: Method
    seconds: float
    shipped_tokens: int
    shipping_s: float = 0.0
    computing_s: float = 0.0
    ships_tail: bool = False


class MigrationCost(Struct, frozen=True):
    """The seconds that a transfer and a recompute take however short the context is.

    A split takes as long as computing `split_grain_tokens` more than its formula says, since its two sides
    meet where a step of the destination ends. ValueError where one of them is negative or not finite. The
    methods take lengths of at least 0.
    """

    transfer_overhead_s: float
    recompute_overhead_s: float
    split_grain_tokens: float = 0.0

    def __post_init__(self) -> None:
        for overhead in (self.transfer_overhead_s, self.recompute_overhead_s, self.split_grain_tokens):
            if not 0 <= overhead < math.inf:
                raise ValueError(f"an overhead is a number of at least 0, not {overhead}")

    def kv_transfer(self, context_tokens: float, source: Server, destination: Server) -> float:
        """Seconds to ship the KV of the whole context: a fast source cannot rescue a slow destination."""
        bandwidth = min(source.bandwidth_bytes_per_s, destination.bandwidth_bytes_per_s)
        return self.transfer_overhead_s + source.kv.bytes(0, context_tokens) / bandwidth

    def recompute(self, context_tokens: float, destination: Server) -> float:
        """Seconds in which the destination computes the KV of the whole context from its tokens."""
        return self.recompute_overhead_s + context_tokens / destination.prefill_tps

    def split(self, context_tokens: int, source: Server, destination: Server) -> Plan:
        """The best of all splits, those included that ship all or nothing and so cost what the other two do.

        `shipped_tokens` is a whole number, so it is searched for rather than computed: shipping more can only
        take longer and leaves less to compute, so the best is next to where the two sides take equally long.
        """

        def shipping_s(shipped: int) -> float:
            return self.kv_transfer(shipped, source, destination)

        def computing_s(shipped: int) -> float:
            return self.recompute(context_tokens - shipped, destination)

        balanced = bisect_left(
            range(context_tokens), True, key=lambda shipped: shipping_s(shipped) >= computing_s(shipped)
        )
        grain_s = self.split_grain_tokens / destination.prefill_tps
        inner = {balanced, balanced - 1} & set(range(1, context_tokens))
        options = [(max(shipping_s(n), computing_s(n)) + grain_s, n) for n in inner]
        seconds, shipped = min([*options, (computing_s(0), 0), (shipping_s(context_tokens), context_tokens)])
        return Plan(
            Method.SPLIT,
            seconds,
            shipped,
            shipping_s(shipped) if shipped else 0.0,
            computing_s(shipped) if shipped < context_tokens else 0.0,
            shipped == context_tokens and self._ships_tail(source, destination),
        )

    def planned(
        self,
        context_tokens: int,
        source: Server,
        destination: Server,
        methods: Collection[Method] = ALL_METHODS,
    ) -> Plan:
        """The cheapest of `methods`; where two cost the same, the one that ships less.

        ValueError where `methods` is empty.
        """
        if not methods:
            raise ValueError("a move needs at least one method to choose from")
        # In the order of Method: a set's own order differs from process to process.
        plans = (
            self._plan(method, context_tokens, source, destination) for method in Method if method in methods
        )
        return min(plans, key=lambda plan: (plan.seconds, plan.shipped_tokens))

    def unplanned(self, context_tokens: int, destination: Server) -> Plan:
        """The source is gone and its KV with it: only recompute is left."""
        seconds = self.recompute(context_tokens, destination)
        return Plan(Method.TOKENS, seconds, 0, 0.0, seconds)

    def _plan(self, method: Method, context_tokens: int, source: Server, destination: Server) -> Plan:
        match method:
            case Method.TOKENS:
                return self.unplanned(context_tokens, destination)
            case Method.KV:
                seconds = self.kv_transfer(context_tokens, source, destination)
                ships_tail = self._ships_tail(source, destination)
                return Plan(Method.KV, seconds, context_tokens, seconds, 0.0, ships_tail)
            case Method.SPLIT:
                return self.split(context_tokens, source, destination)
        assert_never(method)

    def _ships_tail(self, source: Server, destination: Server) -> bool:
        bandwidth = min(source.bandwidth_bytes_per_s, destination.bandwidth_bytes_per_s)
        return source.kv.final_bytes_per_token / bandwidth < 1 / destination.prefill_tps


class TransferWins(StrEnum):
    """At which context lengths shipping the KV is cheaper than recomputing it."""

    NEVER = "never"
    ALWAYS = "always"
    ABOVE = "above c*"
    BELOW = "below c*"
    IN_RANGES = "in ranges"


class Crossover(Struct, frozen=True):
    """The `ranges` of context lengths [from, to) in which transfer is cheaper, ascending and disjoint.

    The last one may end at infinity. Only a KV that is not linear can need more than one.
    """

    ranges: tuple[tuple[float, float], ...]

    @property
    def wins(self) -> TransferWins:
        """Which of the cases it is."""
        match self.ranges:
            case ():
                return TransferWins.NEVER
            case ((0, math.inf),):
                return TransferWins.ALWAYS
            case ((_, math.inf),):
                return TransferWins.ABOVE
            case ((0, _),):
                return TransferWins.BELOW
        return TransferWins.IN_RANGES

    @property
    def tokens(self) -> float:
        """c*: the longest context at which the cheaper method changes, whichever way.

        0 where transfer always wins and infinite where it never does, as if it then won above c*.
        """
        if not self.ranges:
            return math.inf
        start, end = self.ranges[-1]
        return start if end == math.inf else end


def crossover_tokens(source: Server, destination: Server, cost: MigrationCost) -> Crossover:
    """At which context lengths `cost` has a transfer from `source` cheaper than a recompute.

    c* = (O_t - O_r) / (1/p - kv/B) where the KV is linear. In general both costs are straight lines between
    two points of the KV's size, so their difference changes sign at most once between them.
    """

    def excess_s(tokens: float) -> float:
        return cost.kv_transfer(tokens, source, destination) - cost.recompute(tokens, destination)

    knots = [tokens for tokens, _ in source.kv.points[:-1]]
    excess = [(tokens, excess_s(tokens)) for tokens in knots]
    bandwidth = min(source.bandwidth_bytes_per_s, destination.bandwidth_bytes_per_s)
    # Not from two values of excess_s: their rounding would turn parallel lines into a c* at 1e16 tokens.
    final_slope = source.kv.final_bytes_per_token / bandwidth - 1 / destination.prefill_tps

    edges = [
        start + (end - start) * at_start / (at_start - at_end)
        for (start, at_start), (end, at_end) in pairwise(excess)
        if (at_start < 0) != (at_end < 0)
    ]
    last, at_last = excess[-1]
    wins_finally = final_slope < 0 or (final_slope == 0 and at_last < 0)
    if wins_finally != (at_last < 0):
        edges.append(last - at_last / final_slope)
    spans = list(pairwise([0.0, *(edge for edge in edges if edge > 0), math.inf]))
    # Spans alternate, and which of the two methods has the last one is known.
    return Crossover(tuple(spans[(len(spans) + wins_finally) % 2 :: 2]))


def crossover_table(
    destination: Server, kv_bytes_per_token: float | KvSize, cost: MigrationCost, links: Mapping[str, float]
) -> dict[str, Crossover]:
    """The crossover to `destination` over each link; their bandwidths are in bytes/s."""
    kv = kv_bytes_per_token if isinstance(kv_bytes_per_token, KvSize) else KvSize.linear(kv_bytes_per_token)
    return {
        name: crossover_tokens(Server(destination.prefill_tps, bandwidth, kv), destination, cost)
        for name, bandwidth in links.items()
    }

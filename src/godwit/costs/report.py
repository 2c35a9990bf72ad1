"""What a cluster's moves cost as far as is known now, for people and programs that look."""

from msgspec import Struct

from godwit.costs.accuracy import ErrorSummary
from godwit.costs.constants import Constant
from godwit.costs.known import ServerConstants
from godwit.costs.kv import KvSize
from godwit.costs.learnt import KvSizes, Learning


class Known(Struct, frozen=True):
    """A constant as it stands: `n` of the latest moves taught it; 0 means what `provenance` says."""

    value: float
    n: int
    provenance: str


class PairReport(Struct, frozen=True):
    """The way from one worker to another; None for both: a pair that is not known itself.

    `loaded_share` is what is left of the bandwidth while both ends serve other requests.
    """

    source: str | None
    destination: str | None
    transfer_overhead_s: Known
    bandwidth_bytes_per_s: Known
    loaded_share: float


class ServerReport(Struct, frozen=True):
    """One model on one worker; `worker` None: on one that is not known itself; `model` None: any other one.

    `kv_bytes_per_token` is the mean over the longest range that is known. `loaded_share` is what is left of
    the prefill rate while the worker serves other requests.
    """

    worker: str | None
    model: str | None
    recompute_overhead_s: Known
    prefill_tps: Known
    kv_bytes_per_token: Known
    loaded_share: float


class CostsReport(Struct, frozen=True):
    """The constants from which moves are chosen, and by phase how far predictions were from what happened."""

    pairs: tuple[PairReport, ...]
    servers: tuple[ServerReport, ...]
    errors: dict[str, ErrorSummary]


def line_known(learnt: Learning, overhead: Constant, rate: Constant) -> tuple[Known, Known]:
    """Overhead and rate: the two constants until moves have taught the line that they began as."""
    if learnt.n == 0:
        return Known(overhead.value, 0, overhead.provenance), Known(rate.value, 0, rate.provenance)
    source = _learnt_from(learnt.n)
    return (
        Known(learnt.line.intercept, learnt.n, source),
        Known(1 / learnt.line.slope, learnt.n, source),
    )


def size_known(sizes: KvSizes | None, constants: ServerConstants) -> Known:
    """KV bytes a token: what somebody measured, else what moves have shown, else what is assumed."""
    if sizes is not None and not constants.is_kv_measured:
        return Known(_mean(sizes.kv), sizes.n, _learnt_from(sizes.n))
    provenance = "measured, by range" if constants.kv_points else constants.kv_bytes_per_token.provenance
    return Known(_mean(constants.kv), 0, provenance)


def _mean(kv: KvSize) -> float:
    tokens, size = kv.points[-1]
    return size / tokens


def _learnt_from(n: int) -> str:
    return f"learnt from {n} move{'' if n == 1 else 's'}"

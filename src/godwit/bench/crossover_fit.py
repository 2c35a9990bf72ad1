"""A link's constants from the moves that calibrate it, as a head takes them. Pure."""

from collections.abc import Sequence
from statistics import median

from godwit.bench.crossover_report import LinkConstants
from godwit.bench.traveller import ready_s
from godwit.costs.constants import Constant, Measurement
from godwit.costs.crossover import Crossover, Server, crossover_tokens
from godwit.costs.lines import rate_line
from godwit.profile import ModelProfile, Profile
from godwit.protocol.entry import MoveRecord


def fit_constants(records: Sequence[MoveRecord], on: str) -> LinkConstants:
    """A link's and its workers' constants from moves of stopped sources, some by KV and some by tokens.

    Seconds until the destination could decode are a line over the bytes for the ones, and over the context
    for the others.
    """
    shipped = [r for r in records if r.kv_tokens > 0]
    computed = [r for r in records if r.kv_tokens == 0]
    transfer = rate_line([(float(r.kv_bytes), s) for r, s in zip(shipped, ready_s(shipped), strict=True)], on)
    recompute = rate_line(
        [(float(r.context_tokens), s) for r, s in zip(computed, ready_s(computed), strict=True)], on
    )
    sizes = [r.kv_bytes / r.kv_tokens for r in shipped]
    kv_bytes = Constant(median(sizes), Measurement(on, len(sizes), min(sizes), max(sizes)))
    return LinkConstants(transfer.overhead_s, recompute.overhead_s, transfer.rate, recompute.rate, kv_bytes)


def profile_of(constants: LinkConstants, model: str, hardware: str, today: str) -> Profile:
    """The constants as a head takes them."""
    return Profile(
        hardware=hardware,
        date=today,
        transfer_overhead_s=constants.transfer_overhead_s,
        recompute_overhead_s=constants.recompute_overhead_s,
        bandwidth_bytes_per_s=constants.bandwidth_bytes_per_s,
        models={
            model: ModelProfile(
                prefill_tps=constants.prefill_tps, kv_bytes_per_token=constants.kv_bytes_per_token
            )
        },
    )


def predicted_crossover(profile: Profile, model: str) -> Crossover:
    """Where the constants say that shipping the KV becomes the cheaper one."""
    bandwidth = profile.bandwidth_bytes_per_s
    if bandwidth is None:
        raise ValueError("a link's profile has its bandwidth")
    known = profile.models[model]
    server = Server(known.prefill_tps.value, bandwidth.value, known.kv)
    return crossover_tokens(server, server, profile.cost)

"""A link's constants from the moves that calibrate it, as a head takes them. Pure."""

from collections.abc import Sequence
from statistics import mean, median

from godwit.bench.crossover_report import LinkConstants
from godwit.bench.traveller import ready_s
from godwit.costs.constants import Constant, Measurement
from godwit.costs.crossover import Crossover, Server, crossover_tokens
from godwit.costs.fit import Estimate, fit_affine_robust
from godwit.profile import ModelProfile, Profile
from godwit.protocol.entry import MoveRecord

# A rate that noise has put at nothing is as good as this: seconds a byte or a token.
_LEAST_SLOPE = 1e-12


def fit_constants(records: Sequence[MoveRecord], on: str) -> LinkConstants:
    """A link's and its workers' constants from moves of stopped sources, some by KV and some by tokens.

    Seconds until the destination could decode are a line over the bytes for the ones, and over the context
    for the others.
    """
    shipped = [r for r in records if r.kv_tokens > 0]
    computed = [r for r in records if r.kv_tokens == 0]
    transfer_overhead, per_byte = _line([float(r.kv_bytes) for r in shipped], shipped)
    recompute_overhead, per_token = _line([float(r.context_tokens) for r in computed], computed)
    sizes = [r.kv_bytes / r.kv_tokens for r in shipped]
    kv_bytes = Constant(median(sizes), Measurement(on, len(sizes), min(sizes), max(sizes)))
    return LinkConstants(
        transfer_overhead.measured(on),
        recompute_overhead.measured(on),
        _rate(per_byte, on),
        _rate(per_token, on),
        kv_bytes,
    )


def _line(xs: Sequence[float], records: Sequence[MoveRecord]) -> tuple[Estimate, Estimate]:
    """Overhead and slope, neither below 0: what noise has put there is as little as can be."""
    ys = ready_s(records)
    fit = fit_affine_robust(xs, ys)
    n = fit.slope.n
    if fit.slope.value < _LEAST_SLOPE:
        level = mean(ys)
        return Estimate(level, min(ys), max(ys), n), Estimate(_LEAST_SLOPE, _LEAST_SLOPE, fit.slope.high, n)
    if fit.intercept.value < 0:
        ratios = [y / x for x, y in zip(xs, ys, strict=True)]
        nothing = Estimate(0.0, 0.0, max(fit.intercept.high, 0.0), n)
        return nothing, Estimate(median(ratios), min(ratios), max(ratios), n)
    return fit.intercept, fit.slope


def _rate(slope: Estimate, on: str) -> Constant:
    """Units a second from seconds a unit."""
    low, high = (1 / max(bound, _LEAST_SLOPE) for bound in (slope.high, slope.low))
    return Constant(1 / slope.value, Measurement(on, slope.n, low, high))


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

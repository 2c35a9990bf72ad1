"""Made-up measurements of a cluster whose constants are known become a profile with these constants."""

from random import Random

import pytest

from godwit.calibrate.build import Built, build_profile
from godwit.calibrate.measured import DecodeSample, Measurements, MoveSample, PrefillSample, PromptSample
from godwit.calibrate.report import make_report
from godwit.costs.constants import Constant
from godwit.profile import format_profile, parse_profile

CONTEXTS = (64, 128, 192, 256, 384, 512, 640, 832)
KV = 23_040
TRANSFER_S, BANDWIDTH = 0.03, 4e8
RECOMPUTE_S = 0.1
PREFILL = {"a": 200.0, "b": 100.0}


def _moves(random: Random, source: str, destination: str, *, is_loaded: bool) -> list[MoveSample]:
    slower = 2.0 if is_loaded else 1.0
    samples = []
    for context in CONTEXTS:
        size = context * KV
        seconds = TRANSFER_S + size / BANDWIDTH * slower + random.gauss(0, 0.0005)
        samples.append(
            MoveSample(
                model="m",
                source=source,
                destination=destination,
                is_loaded=is_loaded,
                kv_tokens=context,
                kv_bytes=size,
                ready_s=seconds,
            )
        )
        seconds = RECOMPUTE_S + context / PREFILL[destination] * slower + random.gauss(0, 0.01)
        samples.append(
            MoveSample(
                model="m",
                source=source,
                destination=destination,
                is_loaded=is_loaded,
                computed_tokens=context,
                ready_s=seconds,
                source_ratio=1.2 + random.gauss(0, 0.02),
                destination_ratio=5 + random.gauss(0, 0.1) if is_loaded else None,
            )
        )
    return samples


def _found() -> Measurements:
    random = Random(7)
    found = Measurements(warnings=["something"])
    for source, destination in (("a", "b"), ("b", "a")):
        for is_loaded in (False, True):
            found.moves += _moves(random, source, destination, is_loaded=is_loaded)
    for batch in (1, 2, 4):
        steps = tuple(0.04 + 0.01 * batch + random.gauss(0, 0.001) for _ in range(20))
        found.decodes.append(DecodeSample("m", "a", batch, steps))
        found.prefills += [PrefillSample("m", "a", batch, 128 * batch, 0.64 * batch) for _ in range(3)]
    return found


@pytest.fixture(scope="module")
def built() -> Built:
    return build_profile(_found(), "made up", "2025-11-30")


def _holds(constant: Constant | None, truth: float, rel: float = 0.05) -> None:
    assert constant is not None and constant.measured is not None
    assert constant.value == pytest.approx(truth, rel=rel)
    assert constant.measured.low <= constant.value
    assert constant.measured.high is not None and constant.value <= constant.measured.high


def test_the_cluster(built: Built) -> None:
    profile = built.profile
    _holds(profile.transfer_overhead_s, TRANSFER_S)
    _holds(profile.bandwidth_bytes_per_s, BANDWIDTH)
    measured = profile.transfer_overhead_s.measured
    assert measured is not None and measured.on == "made up, 2025-11-30" and measured.n == 2 * len(CONTEXTS)
    assert measured.residual_std == pytest.approx(0.0005, rel=0.5)
    _holds(profile.models["m"].kv_bytes_per_token, KV, rel=1e-9)
    assert profile.models["m"].kv_points == ()
    assert built.kv_points["m"][0] == (64, 64 * KV)
    assert built.warnings == ("something",)


def test_each_worker(built: Built) -> None:
    for worker, rate in PREFILL.items():
        own = built.profile.workers[worker]["m"]
        _holds(own.prefill_tps, rate)
        _holds(own.recompute_overhead_s, RECOMPUTE_S, rel=0.5)
        _holds(own.prefill_loaded_tps, rate / 2)
        _holds(own.source_slowdown, 1.2)
        _holds(own.destination_slowdown, 5)


def test_each_pair(built: Built) -> None:
    assert [(pair.source, pair.destination) for pair in built.profile.pairs] == [("a", "b"), ("b", "a")]
    for pair in built.profile.pairs:
        _holds(pair.transfer_overhead_s, TRANSFER_S)
        _holds(pair.bandwidth_bytes_per_s, BANDWIDTH)
        _holds(pair.bandwidth_loaded_bytes_per_s, BANDWIDTH / 2)


def test_rates_by_batch_size(built: Built) -> None:
    for rates, batch in zip(built.profile.models["m"].batches, (1, 2, 4), strict=True):
        assert rates.batch == batch
        _holds(rates.decode_tps, batch / (0.04 + 0.01 * batch))
        _holds(rates.prefill_tps, 200)


def test_the_profile_can_be_written_and_the_report_names_every_constant(built: Built) -> None:
    assert parse_profile(format_profile(built.profile)) == built.profile
    report = make_report(built, 64, 200.0)
    names = {(one.name, one.model, one.worker, one.source, one.batch) for one in report.constants}
    assert ("bandwidth_loaded_bytes_per_s", None, None, "b", None) in names
    assert ("decode_tps", "m", "a", None, 4) in names
    assert ("destination_slowdown", "m", None, None, None) in names
    assert all(one.n is not None and one.low is not None for one in report.constants)


def test_one_worker_alone_has_its_rates_and_nothing_else() -> None:
    found = Measurements(prompts=[PromptSample("m", "a", n, 0.02 + n / 200) for n in CONTEXTS])
    built = build_profile(found, "made up", "2025-11-30")
    _holds(built.profile.models["m"].prefill_tps, 200)
    assert built.profile.models["m"].recompute_overhead_s is None
    assert built.profile.transfer_overhead_s.measured is None and built.profile.pairs == ()
    assert built.profile.bandwidth_bytes_per_s is None
    assert any("transfer" in warning and "assumed" in warning for warning in built.warnings)


def test_nothing_measured_is_everything_assumed() -> None:
    built = build_profile(Measurements(), "made up", "2025-11-30")
    assert built.profile.models == {} and built.profile.recompute_overhead_s.measured is None


def test_few_points_and_lower_bounds_are_said() -> None:
    found = _found()
    found.moves = [s for s in found.moves if s.source == "a" and s.kv_tokens + s.computed_tokens < 300]
    fast = [
        MoveSample(
            model="m", source="b", destination="a", is_loaded=False, kv_tokens=n, kv_bytes=n, ready_s=0.03
        )
        for n in CONTEXTS
    ]
    found.moves += fast
    warnings = build_profile(found, "made up", "2025-11-30").warnings
    assert any("fewer than 8 points" in warning and "a → b" in warning for warning in warnings)
    assert any("only a lower bound" in warning and "b → a" in warning for warning in warnings)

"""Profiles: read back as written, and what is wrong in one is named."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from godwit.costs.choice import MoveCosts
from godwit.costs.constants import Constant, Measurement
from godwit.costs.crossover import MigrationCost, Server
from godwit.costs.known import Constants
from godwit.costs.kv import KvSize
from godwit.costs.shipping import SPLIT_GRAIN_TOKENS
from godwit.errors import ConfigError
from godwit.profile import (
    BatchRates,
    ModelProfile,
    PairProfile,
    Profile,
    format_profile,
    parse_profile,
    read_profile,
    write_profile,
)

MEASURED = Measurement("2 × Xeon, 2025-11-30", 24, 0.03, 0.05)
PROFILE = Profile(
    hardware="2 × Xeon",
    date="2025-11-30",
    transfer_overhead_s=Constant(0.04, MEASURED),
    bandwidth_bytes_per_s=Constant(4e8),
    models={
        "full": ModelProfile(prefill_tps=Constant(150.0), kv_bytes_per_token=Constant(23_000.0)),
        "windowed": ModelProfile(prefill_tps=Constant(250.0), kv_points=((500, 9e6), (2000, 21e6))),
    },
)


DETAILED = replace(
    PROFILE,
    models={
        **PROFILE.models,
        "windowed": ModelProfile(
            prefill_tps=Constant(250.0),
            recompute_overhead_s=Constant(0.7),
            kv_points=((500, 9e6), (2000, 21e6)),
        ),
    },
    workers={
        "w2": {
            "full": ModelProfile(
                prefill_tps=Constant(75.0, MEASURED),
                recompute_overhead_s=Constant(0.3),
                prefill_loaded_tps=Constant(60.0),
                batches=(BatchRates(batch=4, decode_tps=Constant(180.0)),),
                source_slowdown=Constant(1.4),
            ),
            "windowed": ModelProfile(prefill_tps=Constant(99.0), kv_bytes_per_token=Constant(5.0)),
            "only there": ModelProfile(prefill_tps=Constant(9.0)),
        }
    },
    pairs=(
        PairProfile(
            source="w1",
            destination="w2",
            transfer_overhead_s=Constant(0.01),
            bandwidth_bytes_per_s=Constant(1e8, MEASURED),
            bandwidth_loaded_bytes_per_s=Constant(5e7),
        ),
    ),
)


@pytest.mark.parametrize("profile", [PROFILE, DETAILED])
def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path, profile: Profile) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, profile)
    assert read_profile(path) == profile
    assert [one.name for one in tmp_path.iterdir()] == ["profile.json"]


def test_what_nobody_measured_is_assumed() -> None:
    profile = parse_profile("{}")
    assert profile.cost == MigrationCost(0.5, 0.2, SPLIT_GRAIN_TOKENS)
    assert profile.transfer_overhead_s.provenance == "assumed"
    assert profile.bandwidth_bytes_per_s is None


def test_a_profile_gives_what_the_cost_model_takes() -> None:
    assert PROFILE.cost == MigrationCost(0.04, 0.2, SPLIT_GRAIN_TOKENS)
    assert PROFILE.models["full"].kv.bytes(0, 1000) == 23e6
    assert PROFILE.models["windowed"].kv.bytes(0, 1250) == pytest.approx(15e6)


def test_a_file_says_its_version() -> None:
    assert '"version": 1' in format_profile(Profile())


PAIR = """{"source": "%s", "destination": "%s",
"transfer_overhead_s": {"value": 0}, "bandwidth_bytes_per_s": {"value": %s}}"""


def _pairs(*pairs: str) -> str:
    return f'{{"pairs": [{", ".join(pairs)}]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a profile in JSON"),
        ("[]", "the profile: expected `object`, got `array`"),
        ('{"version": 2}', "version: invalid enum value 2"),
        ('{"hardwear": "x"}', "the profile: object contains unknown field `hardwear`"),
        ('{"transfer_overhead_s": 0.5}', "transfer_overhead_s: expected `object`"),
        ('{"transfer_overhead_s": {"value": -1}}', "transfer_overhead_s: a constant is a finite number"),
        ('{"bandwidth_bytes_per_s": {"value": 0}}', "bandwidth_bytes_per_s is above 0"),
        ('{"models": {"m": {}}}', "models.*prefill_tps"),
        ('{"models": {"m": {"prefill_tps": {"value": 0}}}}', "models.*prefill_tps is above 0"),
        (
            '{"models": {"m": {"prefill_tps": {"value": 9}, "kv_points": [[9, 5], [10, 4]]}}}',
            "models.*cannot be 10.0 with 4.0",
        ),
        (
            '{"models": {"m": {"prefill_tps": {"value": 9}, "prefill_loaded_tps": {"value": 0}}}}',
            r"models.*prefill_loaded_tps is above 0",
        ),
        ('{"workers": {"w": {"m": {}}}}', "workers.*prefill_tps"),
        ('{"workers": {"w": {"m": {"prefill_tps": {"value": 0}}}}}', "workers.*prefill_tps is above 0"),
        ('{"workers": {"": {}}}', "workers.*length >= 1"),
        (
            '{"workers": {"w": {"m": {"prefill_tps": {"value": 1}, "batches": [{"batch": 0}]}}}}',
            r"batches\[0\]\.batch: expected `int` >= 1",
        ),
        (_pairs(PAIR % ("w1", "w1", 9)), r"pairs\[0\]: a pair is two workers, not 'w1' twice"),
        (_pairs(PAIR % ("w1", "w2", 0)), r"pairs\[0\]: a bandwidth is above 0"),
        (_pairs(PAIR % ("", "w2", 9)), r"pairs\[0\]\.source: expected `str` of length >= 1"),
        (_pairs('{"source": "w1"}'), r"pairs\[0\]: object missing required field `destination`"),
        (
            _pairs(PAIR % ("w1", "w2", 9), PAIR % ("w1", "w2", 8)),
            "pairs: from 'w1' to 'w2' stands there twice",
        ),
        (
            '{"recompute_overhead_s": {"value": 1, "measured": {"on": "x", "n": 0, "low": 0, "high": 2}}}',
            "recompute_overhead_s.measured: a measurement has at least one sample",
        ),
    ],
)
def test_a_wrong_profile_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_profile(text)


def test_moves_are_chosen_from_what_is_measured_and_else_from_what_is_assumed() -> None:
    terms = MoveCosts(PROFILE.constants).terms("full", "a", "b")
    assert terms.cost == PROFILE.cost
    assert terms.source == terms.destination == Server(150.0, 4e8, KvSize.linear(23_000))
    assert Profile().constants == Constants()


def test_a_pair_and_a_worker_have_what_was_measured_of_them() -> None:
    costs = MoveCosts(DETAILED.constants)
    terms = costs.terms("full", "w1", "w2")
    assert terms.cost == MigrationCost(0.01, 0.3, SPLIT_GRAIN_TOKENS)
    assert terms.destination == Server(75.0, 1e8, KvSize.linear(23_000)), "its KV is the model's"
    loaded = costs.terms("full", "w1", "w2", both_loaded=True).destination
    assert (loaded.bandwidth_bytes_per_s, loaded.prefill_tps) == pytest.approx((5e7, 60.0))
    assert costs.terms("full", "w2", "w1").source == Server(150.0, 4e8, KvSize.linear(23_000))
    own = costs.terms("windowed", "w1", "w2")
    assert own.destination.kv == KvSize.linear(5)
    assert own.cost.recompute_overhead_s == 0.7, "the model's, as the worker has none"
    assert costs.terms("only there", "w1", "w2").destination.prefill_tps == 9


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: the profile cannot be read"):
        read_profile(tmp_path / "none.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    with pytest.raises(ConfigError, match=r"wrong\.json: not a profile in JSON"):
        read_profile(wrong)
    wrong.write_bytes(b'{"date": "\xff"}')
    with pytest.raises(ConfigError, match=r"wrong\.json: "):
        read_profile(wrong)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_profile(tmp_path / "no" / "such" / "folder.json", PROFILE)

"""Scenario files are read strictly, and every key can be set."""

import tomllib
from pathlib import Path

import pytest

from godwit.errors import ConfigError
from godwit.scenarios.read import head_of, names, parse_assignment, read_raw, scenario_of
from tests.scenarios.small import TOML

RAW = tomllib.loads(TOML)


@pytest.mark.parametrize("name", names())
def test_the_built_in_ones_are_right(name: str) -> None:
    scenario = scenario_of(read_raw(name))
    assert scenario.about
    for varied in (scenario.cases, scenario.sweep, scenario.ablations.keys):
        for key, values in varied.items():
            for value in values:
                scenario_of(read_raw(name), [(key, value)])


def test_the_names_that_the_issue_wants() -> None:
    wanted = {"contention", "mixed-fleet", "volunteer-fleet", "azure-conv", "azure-code", "mooncake"}
    assert wanted <= set(names())
    fleet = ["random", "reactive", "least_loaded", "hedged", "hazard_classic", "hazard_window", "oracle"]
    for name in ("mixed-fleet", "volunteer-fleet"):
        assert list(scenario_of(read_raw(name)).policies) == fleet


def test_an_unknown_scenario() -> None:
    with pytest.raises(
        ConfigError, match="no scenario 'bla'; choose one of: azure-code, azure-conv, contention"
    ):
        read_raw("bla")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(TOML)
    assert scenario_of(read_raw(str(path))) == scenario_of(RAW)
    path.write_text("about = ")
    with pytest.raises(ConfigError, match=r"own\.toml is not valid TOML"):
        read_raw(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_raw(str(tmp_path / "none.toml"))


def test_keys_are_set() -> None:
    texts = [
        "workload.rate_per_s=2",
        "machines.box.dram_gb = 5",
        "workload.source=gsm8k",
        'models."m".copies=7',
    ]
    scenario = scenario_of(RAW, [parse_assignment(text) for text in texts])
    assert scenario.workload.rate_per_s == 2
    assert scenario.machines["box"].dram_gb == 5
    assert scenario.workload.source == "gsm8k"
    assert scenario.models["m"].copies == 7
    assert scenario_of(RAW).models["m"].copies == 3


def test_what_a_policy_does_not_say_is_the_heads() -> None:
    scenario = scenario_of(RAW, [("head.patience_s", 9.0), ("policies.random.patience_s", 1.0)])
    assert head_of(scenario, "random").patience_s == 1.0
    assert head_of(scenario, "live_migration").patience_s == 9.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload.rate=2", r"workload\.rate: no such key; allowed here: model, source, rate_per_s"),
        ("machines.box.gpus=2", r"machines\[box\]\.gpus: no such key; allowed here: count, devices"),
        ("head.patience=2", r"policies\.random\.patience: no such key; allowed here: .*patience_s"),
        ('policies.random.early={rule="window", h=1}', r"early\.h: no such key; allowed here: rule, hyst"),
        ("head.tick_s=0", r"policies\.random\.tick_s: expected `float` > 0"),
        ("head.family=bla", r"policies\.random: there is no family 'bla'; choose one of: exponential"),
        ("baselines=[]", r"baselines: a '\w+' report needs \d of the policies: random"),
        ('baselines=["bla", "random"]', r"baselines: there is no policy 'bla'; choose one of: random"),
        ("workload.warm_up_minutes=1e6", r"workload\.warm_up_minutes: must be less than workload\.minutes"),
        ("models.m.checkpoint_gb=1e6", r"machines\.box\.device_gb: .* too few for 'm', whose checkpoint"),
        ("world.grain=0", r"world\.grain: expected `int` >= 1"),
        ("workload.source=bla", r"workload\.source: invalid enum value 'bla'; allowed: .*gsm8k"),
        ("policies.random.policy=bla", "no policy 'bla'"),
        ("workload.model=bla", r"workload\.model: there is no model 'bla'; choose one of: m"),
        ("baselines=['bla']", "no policy 'bla'; choose one of: random, live_migration"),
        ("report=fleet", "baselines: a 'fleet' report needs 2"),
        ("workload.rate_per_s", "KEY=VALUE"),
        ("workload..rate=1", "is no key"),
        ("about.text=1", "leads into a value"),
        ("models.m.devices=2", r"machines\.box\.devices: 1 are too few for 'm'"),
        ("models.m={checkpoint_gb=1}", "how quick its decode is"),
    ],
)
def test_a_wrong_key_or_value_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scenario_of(RAW, [parse_assignment(text)])


def test_lengths_need_a_rate() -> None:
    raw = {**RAW, "workload": {"model": "m", "source": "gsm8k"}}
    with pytest.raises(ConfigError, match=r"workload\.rate_per_s: is needed"):
        scenario_of(raw)
    raw = {**RAW, "workload": {"model": "m", "source": "lognormal", "rate_per_s": 1}}
    with pytest.raises(ConfigError, match="needs prompts, outputs"):
        scenario_of(raw)

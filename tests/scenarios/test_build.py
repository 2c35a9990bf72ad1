"""From a scenario to a run: what is the same for all policies, and what a key changes."""

import tomllib
from math import inf
from pathlib import Path

import numpy as np
import pytest

from godwit.scenarios.build import build
from godwit.scenarios.read import Overrides, read_raw, scenario_of
from godwit.sim.spec import Run, Stay
from godwit.traces import data_folder
from godwit.types import Tier
from tests.scenarios.small import FLEET, TOML
from tests.test_traces import needs_data

NOWHERE = Path("/nowhere")
RAW, FLEET_RAW = tomllib.loads(TOML), tomllib.loads(FLEET)


def _run(*overrides: tuple[str, object], policy: str = "random", seed: int = 1) -> Run:
    return build(scenario_of(RAW, overrides), policy, seed, NOWHERE)


def _fleet(*overrides: tuple[str, object], policy: str = "reactive", seed: int = 1) -> Run:
    return build(scenario_of(FLEET_RAW, overrides), policy, seed, NOWHERE)


def test_a_seed_gives_the_same_run_and_another_one_another() -> None:
    assert _run() == _run()
    assert _run(seed=2).asks != _run().asks


def test_policies_meet_the_same_load_and_the_same_sessions() -> None:
    assert _run().asks == _run(policy="live_migration").asks
    assert _fleet().cluster == _fleet(policy="oracle").cluster


def test_a_change_of_one_thing_leaves_the_draws_of_others() -> None:
    before, after = _run(), _run(("workload.exponent", 2))
    assert [ask.at_s for ask in before.asks] == [ask.at_s for ask in after.asks]
    assert [ask.num_prompt for ask in before.asks] == [ask.num_prompt for ask in after.asks]
    assert [ask.model for ask in before.asks] != [ask.model for ask in after.asks]


def test_bursts_of_each_model() -> None:
    together, each = (
        _run(("workload.rate_per_s", 5)),
        _run(("workload.rate_per_s", 5), ("workload.bursts", "each")),
    )
    times = [ask.at_s for ask in each.asks]
    assert times == sorted(times)
    assert len(times) == len(together.asks)
    assert sorted(ask.model for ask in each.asks) == sorted(ask.model for ask in together.asks)


def test_hosts_and_workers() -> None:
    cluster = _run(("machines.box.devices", 4), ("models.m.devices", 2), ("machines.box.slots", 3)).cluster
    assert [host.name for host in cluster.hosts] == ["box-1", "box-2"]
    assert [worker.name for worker in cluster.workers] == [
        f"box-{host}-gpu{number}" for host in (1, 2) for number in (1, 2)
    ]
    assert all(worker.device_bytes == 20e9 and worker.slots == 3 for worker in cluster.workers)
    # A model has its devices alone.
    assert all(model.device_bytes == 20e9 for model in cluster.models)
    assert cluster.hosts[0].bytes_per_s[Tier.SSD] == 5e9


def test_copies_on_ssd_and_in_dram() -> None:
    hosts = _run(("machines.box.dram_gb", 25)).cluster.hosts
    assert all(len(host.on_ssd) == 3 and len(host.in_dram) == 2 for host in hosts)
    assert {model for host in hosts for model in host.in_dram} == {"m-1", "m-2", "m-3"}


def test_an_idle_instance_is_kept_for_as_long_as_its_load_takes() -> None:
    assert _run().head.keep_alive_s is None
    assert _run(("head.keep_alive_loads", 2)).head.keep_alive_s == pytest.approx(2 * 10 / 5)


def test_rates_of_the_model_or_of_the_machine() -> None:
    assert _run().cluster.workers[0].rates.decode_s == (0.02,)
    worker = _fleet(("machines.box.speed_low", 2), ("machines.box.speed_high", 2)).cluster.workers[0]
    assert worker.rates.decode_s == pytest.approx((1 / 24,))
    assert worker.rates.prefill_tps == 300
    assert worker.loaded == ("m",)


def test_a_fleet_comes_and_goes_until_the_end() -> None:
    run = _fleet(("machines.box.sessions.notice_s", 30))
    stays = [stay for worker in run.cluster.workers for stay in worker.stays]
    assert len(stays) > 4
    assert all(stay.notice_s == 30 for stay in stays)
    assert run.end_s == 20 * 60 + 30 * 60
    assert _run().cluster.workers[0].stays == (Stay(0.0, inf),)


def test_clients_guess_with_an_error() -> None:
    guesses = [(ask.expected_output, ask.num_output) for ask in _fleet(("workload.rate_per_s", 2)).asks]
    errors = np.log([guess / truth for guess, truth in guesses if guess is not None])
    assert len(errors) == len(guesses)
    assert errors.std() == pytest.approx(0.4, rel=0.1)
    assert _run().asks[0].expected_output is None


def test_links_and_replicas() -> None:
    run = _fleet(("world.link_scale", 0.1), ("policies.reactive.num_replicas", 2))
    assert run.cluster.workers[0].link_bytes_per_s == pytest.approx(1.25e8)
    assert all(ask.num_replicas == 2 for ask in run.asks)


@needs_data
def test_requests_that_are_too_long_are_not_drawn() -> None:
    overrides: Overrides = (
        ("workload.source", "sharegpt"),
        ("workload.rate_per_s", 2),
        ("workload.max_tokens", 512),
    )
    asks = build(scenario_of(RAW, overrides), "random", 1, data_folder()).asks
    assert max(ask.num_prompt + ask.num_output for ask in asks) <= 512


@needs_data
def test_a_trace_is_replayed() -> None:
    scenario = scenario_of(read_raw("azure-code"), [("workload.minutes", 5), ("workload.speed_up", 2)])
    asks = build(scenario, "random", 1, data_folder()).asks
    assert asks[0].at_s == 0
    assert (asks[0].num_prompt, asks[0].num_output) == (4808, 10)
    assert asks[1].at_s == pytest.approx(0.052 / 2, abs=1e-5)
    assert asks[-1].at_s < 300


@needs_data
@pytest.mark.parametrize("trace", ["parcae", "bamboo-p2"])
def test_machines_come_and_go_as_recorded(trace: str) -> None:
    raw = {**FLEET_RAW, "machines": {"spot": {**FLEET_RAW["machines"]["box"]}}}
    del raw["machines"]["spot"]["sessions"]
    raw["machines"]["spot"]["replay"] = {"trace": trace, "from_s": 3600, "notice_s": 120}
    workers = build(scenario_of(raw), "reactive", 1, data_folder()).cluster.workers
    assert 0 < sum(worker.stays[0].start_s == 0 for worker in workers) <= 32
    assert all(stay.notice_s == 120 for worker in workers for stay in worker.stays)


@needs_data
def test_how_much_longer_sharegpt_inferences_are() -> None:
    """3.7 × was published; with these lengths and these rates it is about 3 ×."""

    def mean_s(source: str) -> float:
        overrides = (("workload.source", source), ("workload.rate_per_s", 20.0))
        run = build(scenario_of(read_raw("contention"), overrides), "random", 1, data_folder())
        rates = run.cluster.workers[0].rates
        return float(
            np.mean(
                [ask.num_prompt / rates.prefill_tps + ask.num_output * rates.decode_s[0] for ask in run.asks]
            )
        )

    assert mean_s("sharegpt") / mean_s("gsm8k") == pytest.approx(3.0, abs=0.15)

"""`simulate`: what comes of small runs that can be reckoned by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from godwit.sim.cluster import simulate
from godwit.sim.spec import Ask, ClusterSpec, HostSpec, ModelSpec, Policies, Rates, Run, Stay, WorkerSpec
from godwit.sim.truth import Truth
from godwit.types import ModelName, Tier, WorkerId

MODEL = ModelName("m")
RATES = Rates((0.1,), 100.0)
KV_BYTES = 10_000
A, B = WorkerId("a"), WorkerId("b")


def worker(name: WorkerId, *stays: Stay, rates: Rates = RATES, is_loaded: bool = True) -> WorkerSpec:
    loaded = (MODEL,) if is_loaded else ()
    return WorkerSpec(
        name, name, 10, 1, rates, loaded, link_bytes_per_s=1e6, delay_s=0.001, stays=stays or (Stay(0.0),)
    )


def run_of(*workers: WorkerSpec, head: Policies | None = None) -> Run:
    speeds = {Tier.DRAM: 1e3, Tier.SSD: 1e2, Tier.REMOTE: 1.0}
    hosts = tuple(HostSpec(one.name, speeds, 10_000, on_ssd=(MODEL,)) for one in workers)
    models = (ModelSpec(MODEL, 500, 10, 10_000, KV_BYTES),)
    asks = (Ask(1.0, MODEL, 200, 100),)
    return Run(ClusterSpec(hosts, workers, models), asks, head or Policies(method="tokens"), 1, 1000.0)


def test_a_request_takes_its_prefill_and_its_steps() -> None:
    (answer,) = simulate(run_of(worker(A))).answers
    assert answer.problem is None and answer.num_tokens == 100
    assert answer.ttft_s == pytest.approx(2.0, abs=0.05)
    # One step more finds the end of the sequence.
    assert answer.latency_s == pytest.approx(2.0 + 10.0, abs=0.1)


def test_a_model_on_ssd_is_loaded_first() -> None:
    outcome = simulate(run_of(worker(A, is_loaded=False)))
    assert [load.record.tier for load in outcome.loads] == [Tier.SSD]
    assert outcome.answers[0].ttft_s == pytest.approx(5.0 + 2.0, abs=0.1)


def test_a_vanished_server_is_an_unplanned_loss() -> None:
    outcome = simulate(run_of(worker(A, Stay(0.0, 8.0)), worker(B, Stay(5.0))))
    (answer,) = outcome.answers
    assert (answer.num_losses, answer.num_moves, answer.problem) == (1, 0, None)
    # The prompt and about fifty tokens are computed again.
    assert answer.wasted_s == pytest.approx(2.5, abs=0.2)
    assert answer.planned_s == 0


def test_a_notice_is_left_in_time() -> None:
    outcome = simulate(run_of(worker(A, Stay(0.0, 10.0, notice_s=6.0)), worker(B, Stay(3.0))))
    (answer,) = outcome.answers
    assert (answer.num_losses, answer.num_moves, answer.problem) == (0, 1, None)
    assert answer.planned_s > 0


def test_kv_weighs_what_the_model_says() -> None:
    head = Policies(method="kv")
    outcome = simulate(run_of(worker(A, Stay(0.0, 30.0, notice_s=26.0)), worker(B, Stay(3.0)), head=head))
    (record,) = outcome.moves
    assert record.outcome == "done" and record.method == "kv"
    assert record.actual is not None and record.actual.transfer_s is not None
    # 200 tokens of the prompt and those drawn by then, at 10 kB each over 1 MB/s.
    assert record.actual.transfer_s == pytest.approx(KV_BYTES * record.context_tokens / 1e6, rel=0.2)


def test_the_same_run_gives_the_same_outcome() -> None:
    run = run_of(worker(A, Stay(0.0, 8.0)), worker(B, Stay(5.0)))
    assert simulate(run) == simulate(run)
    assert simulate(replace(run, seed=2)).answers[0].problem is None


def test_the_oracle_knows_when_workers_go() -> None:
    truth = Truth([worker(A, Stay(0.0, 8.0), Stay(20.0, 30.0)), worker(B)])
    horizons_s = np.array([[1.0, 4.0], [1.0, 1e6]])
    assert truth.survival([A, B], 5.0, horizons_s).tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert truth.survival([A], 25.0, np.array([[4.0, 6.0]])).tolist() == [[1.0, 0.0]]

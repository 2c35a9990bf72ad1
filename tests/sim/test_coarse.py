"""Coarse runs are like fine ones, for a fraction of the events."""

import numpy as np
import pytest

from godwit.sim.cluster import simulate
from godwit.sim.coarse import coarsen, refine
from godwit.sim.metrics import Metrics, Slo, measure
from godwit.sim.sessions import draw_stays
from godwit.sim.spec import ClusterSpec, HostSpec, Life, ModelSpec, Policies, Rates, Run, WorkerSpec
from godwit.sim.workload import arrivals_s, lengths, make_asks
from godwit.types import ModelName, WorkerId

MODEL = ModelName("m")
SPAN_S = 3600.0


def _run(seed: int) -> Run:
    """A small fleet that comes and goes."""
    rng = np.random.default_rng(seed)
    times_s = arrivals_s(rng, 0.05, 1.0, SPAN_S)
    tokens = np.stack([lengths(rng, len(times_s), 400, 0.8, 1, 4000) for _ in range(2)], axis=1)
    workers = tuple(
        WorkerSpec(
            WorkerId(f"w{number}"),
            f"w{number}",
            10,
            slots=1,
            rates=Rates((1 / 12,), 150.0),
            loaded=(MODEL,),
            stays=draw_stays(rng, Life(1800, 1.0, 300), 2 * SPAN_S),
            context_tokens=16_384,
        )
        for number in range(10)
    )
    hosts = tuple(HostSpec(worker.host, {}, 0, on_ssd=(MODEL,)) for worker in workers)
    models = (ModelSpec(MODEL, 10, 10, context_tokens=16_384, kv_bytes_per_token=131_072),)
    asks = make_asks(times_s, [MODEL] * len(times_s), tokens)
    head = Policies(policy="availability", placement_timeout_s=SPAN_S)
    return Run(ClusterSpec(hosts, workers, models), asks, head, seed, 2 * SPAN_S)


def _figures(run: Run, grain: int) -> Metrics:
    outcome = refine(simulate(coarsen(run, grain)), run, grain)
    return measure(outcome, Slo(), 0.0, SPAN_S, run.timeout_s)


def test_means_are_about_the_same() -> None:
    run = _run(1)
    fine, coarse = _figures(run, 1), _figures(run, 8)
    assert coarse.errors == fine.errors
    assert coarse.latency_mean_s == pytest.approx(fine.latency_mean_s, rel=0.05)
    assert coarse.tpot_mean_s == pytest.approx(fine.tpot_mean_s, rel=0.05)
    assert coarse.unplanned == pytest.approx(fine.unplanned, abs=3)


def test_tokens_are_counted_in_the_runs_own() -> None:
    run = _run(2)
    outcome = refine(simulate(coarsen(run, 8)), run, 8)
    assert [answer.ask for answer in outcome.answers] == list(run.asks)
    whole = [answer for answer in outcome.answers if answer.problem is None]
    assert whole
    assert all(answer.num_tokens == answer.ask.num_output for answer in whole)


def test_a_grain_of_one_changes_nothing() -> None:
    assert coarsen(_run(3), 1) == _run(3)


def test_what_a_grain_changes() -> None:
    run = coarsen(_run(4), 8)
    worker, model, ask, fine = run.cluster.workers[0], run.cluster.models[0], run.asks[0], _run(4).asks[0]
    assert worker.rates.decode_s == (8 / 12,)
    assert worker.rates.prefill_tps == 150 / 8
    assert (worker.context_tokens, model.context_tokens) == (2048, 2048)
    assert model.kv_bytes_per_token == 8 * 131_072
    assert ask.num_output == -(-fine.num_output // 8)
    with pytest.raises(ValueError, match="at least 1"):
        coarsen(run, 0)

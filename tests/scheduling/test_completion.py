"""`fastest` and `hazard`: where a request is done first, and where its expected loss is counted too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from godwit.scheduling.ask import Ask
from godwit.scheduling.choices import Step
from godwit.scheduling.completion import completion_costs_s
from godwit.scheduling.policies import fastest, hazard, start_of
from godwit.scheduling.startup import fit
from godwit.scheduling.view import ClusterView, Hazards, Risks
from godwit.types import ModelName, Tier, WorkerId
from tests.scheduling.everything import Asked, clusters
from tests.scheduling.hazards import Oracle, Rates
from tests.scheduling.views import NOBODY, W0, W1, W2, A, FixedTimes, absent, cluster, idle, worker

ASK = Ask(num_prompt=128, expected_tokens=80)


def fleet(hazards: Hazards | None = None, *, slow: WorkerId = W0) -> ClusterView:
    """Three idle servers, of which `slow` computes a context in twice the time: 12 s against 11 s in all."""
    times = FixedTimes(resumes={(slow, A): 1 / 64})
    view = cluster(*(worker(name, 100, idle("a", 60)) for name in ("w0", "w1", "w2")), times=times)
    return replace(view, ask=ASK, risks=None if hazards is None else Risks(hazards, 5.0))


def costs(view: ClusterView) -> list[float]:
    choices = [choice for one in view.workers.values() if (choice := fit(view, one, A)) is not None]
    return [float(seconds) for seconds in completion_costs_s(view, A, choices, view.risks)]


def test_time_is_the_start_the_prefill_and_the_tokens() -> None:
    assert costs(fleet()) == [12.0, 11.0, 11.0]
    loading = cluster(worker("w0", 100, absent("a", 60, Tier.DRAM)))
    assert costs(replace(loading, ask=ASK)) == [1.0 + 1.0 + 10.0]


def test_fastest_takes_the_one_that_is_done_first_and_does_not_fear_its_leaving() -> None:
    view = fleet(Oracle({"w1": 3.0}))
    choice = fastest(view, A, NOBODY)
    assert choice is not None and (choice.worker, choice.step) == (W1, Step.START)


def test_hazard_avoids_the_one_that_leaves_but_not_at_any_price() -> None:
    """w1 would lose 5 s + its context; w0 is 1 s slower, w2 is as quick and leaves too late to matter."""
    choice = hazard(fleet(Oracle({"w1": 3.0, "w2": 12.0})), A, NOBODY)
    assert choice is not None and choice.worker == W2
    choice = hazard(fleet(Oracle({"w1": 3.0, "w2": 3.0})), A, NOBODY)
    assert choice is not None and choice.worker == W0
    # 3 % of a loss of some 6 s is less than a second.
    choice = hazard(fleet(Rates({"w1": 0.003, "w2": 0.004})), A, NOBODY)
    assert choice is not None and choice.worker == W1


def test_the_loss_is_recomputed_on_the_best_other_server() -> None:
    """The slow one would be recomputed on a quick one, and these on each other."""
    view = fleet(Oracle({"w0": 0.5, "w1": 0.5, "w2": 0.5}))
    assert costs(view) == pytest.approx([12.0 + 6.0, 11.0 + 6.0, 11.0 + 6.0])
    alone = cluster(worker("w0", 100, idle("a", 60)), times=FixedTimes(resumes={(W0, A): 1 / 64}))
    alone = replace(alone, ask=ASK, risks=Risks(Oracle({"w0": 0.5}), 5.0))
    assert costs(alone) == pytest.approx([12.0 + 5.0 + 2.0])


def test_a_load_may_be_worth_it_and_then_nobody_starts_at_once() -> None:
    """w0 takes 1/8 s for each of 800 tokens; w1 a quarter of that, after a load of 8 s."""
    times = FixedTimes(tokens={(W1, A): 1 / 32})
    view = cluster(
        worker("w0", 100, idle("a", 60)), worker("w1", 100, absent("a", 60, Tier.SSD)), times=times
    )
    view = replace(view, ask=Ask(num_prompt=128, expected_tokens=800))
    choice = fastest(view, A, NOBODY)
    assert choice is not None and (choice.worker, choice.step) == (W1, Step.LOAD)
    assert start_of(fastest)(view, A, NOBODY) is None
    soon = replace(view, ask=Ask(num_prompt=128, expected_tokens=80))
    start = start_of(fastest)(soon, A, NOBODY)
    assert start is not None and (start.worker, start.step) == (W0, Step.START)


@settings(max_examples=100, deadline=None)
@given(asked=clusters(), prompt=st.integers(0, 4000), output=st.integers(1, 4000))
def test_hazard_with_servers_that_all_stay_is_fastest(asked: Asked, prompt: int, output: int) -> None:
    view = replace(asked.view, ask=Ask(prompt, 0, output), risks=Risks(Rates()))
    for model in (A, ModelName("m0")):
        assert hazard(view, model, NOBODY) == fastest(view, model, NOBODY)


def test_hazard_without_risks_is_fastest() -> None:
    assert hazard(fleet(), A, NOBODY) == fastest(fleet(), A, NOBODY)


def test_a_thousand_workers_are_a_matter_of_milliseconds() -> None:
    workers = [worker(f"w{number}", 100, idle("a", 60)) for number in range(1000)]
    view = replace(cluster(*workers), ask=ASK, risks=Risks(Rates({"w1": 0.1})))
    assert np.isfinite(costs(view)).all()

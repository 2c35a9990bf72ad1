"""What is measured on which cluster, and what is said about the rest."""

import pytest

from godwit.calibrate.plan import (
    FULL,
    DecodeStep,
    MovesStep,
    Plan,
    PrefillStep,
    PromptStep,
    WarmUp,
    batch_sizes,
    check_contexts,
    make_plan,
)
from godwit.client import ClusterStatus, ModelStatus, WorkerStatus
from godwit.errors import ConfigError, UnavailableError


def _worker(
    name: str, *models: str, slots: int = 4, context: int = 4096, draining: bool = False
) -> WorkerStatus:
    served = tuple(ModelStatus(model, True, context) for model in models)
    return WorkerStatus(name, "up", slots, 0, models=served, draining=draining)


def _kinds(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.steps)


def test_two_workers() -> None:
    plan = make_plan(ClusterStatus((_worker("a", "m"), _worker("b", "m"))), FULL)
    assert plan.warnings == ()
    assert isinstance(plan.steps[0], WarmUp)
    assert [s.context_tokens for s in plan.steps if isinstance(s, MovesStep)] == list(FULL.contexts)
    assert [s.batches for s in plan.steps if isinstance(s, DecodeStep)] == [(1, 2, 4)] * 2
    assert {(s.batch, s.num_prompts) for s in plan.steps if isinstance(s, PrefillStep)} == {
        (1, 2),
        (2, 4),
        (4, 8),
    }


def test_every_pair_that_serves_a_model_and_no_worker_that_leaves() -> None:
    workers = (
        _worker("a", "m", "x"),
        _worker("b", "m"),
        _worker("c", "m", "x"),
        _worker("d", "m", draining=True),
    )
    plan = make_plan(ClusterStatus(workers), FULL)
    pairs = [(s.model, s.first, s.second) for s in plan.steps if isinstance(s, WarmUp)]
    assert pairs == [("m", "a", "b"), ("m", "a", "c"), ("m", "b", "c"), ("x", "a", "c")]


def test_one_worker_has_rates_only() -> None:
    plan = make_plan(ClusterStatus((_worker("a", "m"),)), FULL)
    assert _kinds(plan, MovesStep) == 0 and _kinds(plan, PromptStep) == len(FULL.contexts)
    assert "nothing to move between" in plan.warnings[0]


def test_one_slot_has_no_load() -> None:
    plan = make_plan(ClusterStatus((_worker("a", "m", slots=1), _worker("b", "m"))), FULL)
    assert not any(step.has_load for step in plan.steps if isinstance(step, MovesStep))
    assert "need 2 slots" in plan.warnings[0]


def test_contexts_leave_room() -> None:
    status = ClusterStatus((_worker("a", "m", context=512), _worker("b", "m")))
    lengths = [s.context_tokens for s in make_plan(status, FULL).steps if isinstance(s, MovesStep)]
    assert lengths == [32, 64, 96, 128, 160, 192, 224, 256]
    with pytest.raises(ConfigError, match=r"500 is too long for m.*at most 384"):
        make_plan(status, FULL, contexts=(100, 300, 500))


def test_names_that_are_not_there() -> None:
    status = ClusterStatus((_worker("a", "m"), _worker("b", "m")))
    with pytest.raises(ConfigError, match=r"--workers: 'c' is not there; known: a, b"):
        make_plan(status, FULL, workers=("a", "c"))
    with pytest.raises(ConfigError, match=r"--model: 'x' is not there; known: m"):
        make_plan(status, FULL, models=("x",))
    with pytest.raises(UnavailableError, match="no worker is connected"):
        make_plan(ClusterStatus(), FULL)


def test_batch_sizes() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(6) == (1, 2, 4, 6)
    assert batch_sizes(256) == (1, 2, 4, 8, 16, 32)


def test_a_line_needs_contexts() -> None:
    check_contexts(())
    check_contexts((1, 2, 3))
    with pytest.raises(ConfigError, match="at least 3 different"):
        check_contexts((64, 64, 128))

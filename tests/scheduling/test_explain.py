"""What people are told about a choice: the same as what the policy does."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from godwit.errors import ConfigError
from godwit.scheduling.explain import Explanation, Row, VictimRow, explain
from godwit.scheduling.policies import POLICIES
from godwit.scheduling.view import ClusterView
from godwit.types import Tier
from tests.scheduling.everything import Asked, clusters
from tests.scheduling.views import NOBODY, W1, W2, A, B, absent, busy, changed, cluster, idle, worker

FIGURE_3 = cluster(
    worker("w1", 100, absent("b", 60, Tier.DRAM), absent("a", 60, Tier.SSD)),
    worker("w2", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (256, 128))),
)


def _reason(view: ClusterView, name: str = "w0") -> str:
    rows = explain(view, A, "live_migration").rows
    (row,) = [row for row in rows if row.worker == name]
    assert (row.step, row.seconds, row.is_chosen) == (None, None, False)
    return row.text


def test_every_holder_has_a_row_the_soonest_first() -> None:
    told = explain(FIGURE_3, A, "live_migration")
    assert told.text == "w2 moves b (2 requests) to w1 in 4.0 s, then loads in 1.0 s from dram: 5.0 s in all"
    assert [row.worker for row in told.rows] == [W2, W1]
    assert told.rows[0] == Row(
        W2,
        Tier.DRAM,
        "moves b (2 requests) to w1 in 4.0 s, then loads in 1.0 s from dram: 5.0 s in all",
        "clear",
        5.0,
        0.0,
        1.0,
        60,
        60.0,
        (),
        (VictimRow(B, 2, 384.0, W1, 1.0, 3.0),),
        is_chosen=True,
    )
    assert told.rows[1] == Row(
        W1, Tier.SSD, "loads in 8.0 s from ssd", "load", 8.0, 0.0, 8.0, 60, 7.5, (), (), is_chosen=False
    )


def test_clearing_is_told_where_the_policy_does_not_clear() -> None:
    told = explain(FIGURE_3, A, "availability")
    assert told.text == "w1 loads in 8.0 s from ssd"
    assert [(row.worker, row.step, row.is_chosen) for row in told.rows] == [
        (W2, "clear", False),
        (W1, "load", True),
    ]
    killed = explain(FIGURE_3, A, "preemption").rows[0]
    assert killed.victims == (VictimRow(B, 2, 384.0, None, 0.0, 3.0),)
    assert killed.is_chosen


def test_waiting_is_told() -> None:
    assert explain(FIGURE_3, A, "locality").text == "waits for w2, where the checkpoint is nearest"
    told = explain(cluster(worker("w0", 100, absent("a", 60), busy("b", 60))), A, "availability")
    assert (told.text, told.choice) == ("waits: no server can take it now", None)
    assert explain(FIGURE_3, A, "locality", frozenset({W2})).text == "w1 loads in 8.0 s from ssd"


def test_what_is_loaded_is_on_the_device() -> None:
    (row,) = explain(cluster(worker("w0", 100, idle("a", 60, Tier.SSD))), A, "random").rows
    assert (row.tier, row.step, row.seconds, row.is_chosen) == (Tier.DEVICE, "start", 0.0, True)
    assert (row.text, row.load_s, row.bandwidth_bytes_per_s) == ("starts at once", 0.0, None)


def test_why_not() -> None:
    wanted = absent("a", 60)
    full = busy("a", 60, (1, 2, 3, 4))
    assert _reason(cluster(worker("w0", 100, wanted, is_draining=True))) == "draining"
    assert _reason(cluster(worker("w0", 100, full))) == "all 4 slots taken"
    assert _reason(cluster(worker("w0", 50, wanted))) == "too big: it needs 60 bytes of a device of 50"
    loading = absent("a", 60, is_loading=True, num_promised=4, ready_at_s=2.0)
    assert _reason(cluster(worker("w0", 100, loading))) == "all 4 slots taken"
    told = explain(FIGURE_3, A, "random", frozenset({W1}))
    assert told.rows[0].text == "excluded: it must not run there"
    assert told.rows[0].load_s == 8.0


def test_why_the_device_cannot_be_cleared() -> None:
    wanted, elsewhere = absent("a", 60), worker("w1", 100, idle("b", 60))
    assert (
        _reason(cluster(worker("w0", 100, wanted, busy("b", 60))))
        == "busy: the device is full of b, which cannot move because no other server has room for it"
    )
    assert (
        _reason(cluster(worker("w0", 100, wanted, idle("b", 60, is_pinned=True)), elsewhere))
        == "busy: the device is full of b, which cannot move because it is pinned"
    )
    moving = changed(busy("b", 60), is_moving=True)
    assert (
        _reason(cluster(worker("w0", 110, wanted, moving, claimed_bytes=20), elsewhere))
        == "busy: the device is full of b, which cannot move because one of its requests is moving already; "
        "20 bytes kept for models that are coming"
    )
    two = (busy("b", 40), busy("c", 40))
    assert (
        _reason(cluster(worker("w0", 100, absent("a", 100), *two), elsewhere))
        == "busy: the device is full of b, which could move, but not enough with it; "
        "c, which cannot move because no other server has room for it"
    )


def test_it_is_json_and_back() -> None:
    told = explain(FIGURE_3, A, "live_migration")
    text = msgspec.json.encode(told)
    assert msgspec.json.decode(text, type=Explanation) == told
    assert json.loads(text)["rows"][0]["victims"][0]["num_requests"] == 2


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(ConfigError):
        explain(FIGURE_3, A, "slowest")


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=50, deadline=None)
@given(asked=clusters(), draw=st.data())
def test_the_row_that_is_chosen_is_what_the_policy_does(
    policy: str, asked: Asked, draw: st.DataObject
) -> None:
    """And nobody who is told to be sooner was passed over by the policies that look for the soonest."""
    wanted = asked.first.models[A]
    workers = []
    for one in asked.view.workers.values():
        info = replace(wanted.info, tier=draw.draw(st.sampled_from([Tier.DRAM, Tier.SSD])))
        workers.append(one.with_model(replace(wanted, info=info)))
    view = replace(cluster(*workers), times=asked.view.times, draw=0.5)
    told = explain(view, A, policy)
    choice = POLICIES[policy](view, A, NOBODY)
    assert told.choice == choice
    assert len(told.rows) == len(view.holders[A])
    chosen = [row for row in told.rows if row.is_chosen]
    assert [(row.worker, row.seconds) for row in chosen] == (
        [] if choice is None else [(choice.worker, choice.seconds)]
    )
    if policy in ("preemption", "live_migration") and choice is not None:
        soonest = min(row.seconds for row in told.rows if row.seconds is not None)
        assert choice.seconds == soonest

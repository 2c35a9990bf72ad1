"""What shall run where on a Ray cluster, without Ray."""

import pytest

from godwit.config import HeadSettings, Settings, WorkerSettings
from godwit.errors import ConfigError
from godwit.fleet.plan import (
    LAST_RETRY_S,
    FleetPlan,
    Node,
    Retries,
    actor_resources,
    has_resources,
    head_on,
    head_url,
    left_s,
    read_resources,
    worker_on,
)

NODE = Node("ab" * 28, "10.0.0.7", {"CPU": 8.0, "GPU": 1.0})


def test_names_tell_nodes_apart() -> None:
    assert NODE.worker == "10.0.0.7-abababab"
    assert NODE.actor == "worker-" + "ab" * 28


def test_a_node_is_for_a_worker_if_it_has_all_that_is_wanted() -> None:
    assert has_resources(NODE, {})
    assert has_resources(NODE, {"GPU": 1.0, "CPU": 4.0})
    assert not has_resources(NODE, {"GPU": 2.0})
    assert not has_resources(NODE, {"GPU": 1.0, "spot": 1.0})


def test_resources_are_read() -> None:
    assert read_resources(["GPU=1", "spot=0.5"]) == {"GPU": 1.0, "spot": 0.5}
    assert actor_resources({"GPU": 1.0, "spot": 0.5}) == {
        "num_cpus": 0,
        "num_gpus": 1.0,
        "resources": {"spot": 0.5},
    }
    assert actor_resources({"CPU": 2.0, "memory": 1e9}) == {
        "num_cpus": 2.0,
        "num_gpus": 0,
        "memory": 1e9,
        "resources": {},
    }


@pytest.mark.parametrize(
    "text",
    [
        *("GPU", "GPU=", "GPU=many", "=1", "GPU=0", "GPU=-1", "GPU=nan", "GPU=inf", "GPU=1.5"),
        *("spot=0.00001", "object_store_memory=1"),
    ],
)
def test_other_resources_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--resource"):
        read_resources([text])


def test_a_deadline_leaves_some_time_in_hand() -> None:
    assert left_s(30_000, now_s=10.0) == 19.0
    assert left_s(30_000, now_s=40.0) == 0.0
    assert left_s(0, now_s=40.0) is None


def test_what_listens_on_loopback_by_default_listens_at_the_node_s_address() -> None:
    plan = FleetPlan(Settings(), {})
    assert head_on(plan, "10.0.0.7").head.host == "10.0.0.7"
    assert head_url(plan, "10.0.0.7") == "http://10.0.0.7:8080"
    assert worker_on(Settings(), "10.0.0.7").worker.peer_host == "10.0.0.7"


def test_what_is_configured_stays() -> None:
    head = HeadSettings(host="0.0.0.0", port=80, tls_cert="c", tls_key="k")
    settings = Settings(head=head, worker=WorkerSettings(name="mine", peer_host="0.0.0.0"))
    plan = FleetPlan(settings, {})
    assert head_on(plan, "fd00::7").head.host == "0.0.0.0"
    assert head_url(plan, "fd00::7") == "https://[fd00::7]:80"
    assert (
        head_url(FleetPlan(settings, {}, "https://godwit.internal/"), "10.0.0.7") == "https://godwit.internal"
    )
    worker = worker_on(settings, "10.0.0.7").worker
    assert worker.peer_host == "0.0.0.0"
    assert worker.name is None  # one name for all workers would have them throw each other out


def test_a_node_whose_worker_ends_at_once_waits_longer_each_time() -> None:
    retries = Retries()
    assert retries.may_try("n", 100.0)
    assert not retries.may_try("n", 100.9)
    assert retries.may_try("n", 101.0)
    assert not retries.may_try("n", 102.9)
    assert retries.may_try("other", 102.9)
    assert retries.may_try("n", 103.0)
    now_s = 103.0
    for _ in range(10):
        now_s += LAST_RETRY_S
        assert retries.may_try("n", now_s)


def test_a_worker_that_was_well_for_long_is_replaced_soon() -> None:
    retries = Retries()
    assert retries.may_try("n", 0.0)
    assert retries.may_try("n", 1000.0)
    assert retries.may_try("n", 1001.0)
    retries.keep_only(set())
    assert retries.may_try("n", 1001.1)

"""A slot of an instance that is being loaded is promised again when its request ends."""

import pytest

from godwit.scheduling.policies import POLICIES
from godwit.types import WorkerId
from tests.scheduling.cluster import HUGE, Cluster

ONLY = WorkerId("a")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_who_waits_gets_the_promise_of_one_that_ended_during_the_load(policy: str) -> None:
    cluster = Cluster(policy)
    cluster.join(ONLY, 1)
    for _ in range(2):
        cluster.queue(HUGE, set())
    first, waiting = cluster.requests
    assert num_promised(cluster) == 1
    cluster.end(first)
    assert num_promised(cluster) == 1, "the other one has it"
    cluster.load_ended(ONLY, HUGE, None)
    assert cluster.requests[waiting].worker == ONLY


def num_promised(cluster: Cluster) -> int:
    """Slots of the instance that are taken, or will be."""
    return cluster.scheduler.snapshot().workers[ONLY].models[HUGE].num_used

"""Godwit on three Ray nodes of this machine, workers on two of them."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.cluster.harness import check_whole
from tests.ray.fleet import Fleet, TimedStream

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def fleet(anyio_backend: object) -> AsyncIterator[Fleet]:  # noqa: ARG001 -- its loop is needed
    """Three Ray nodes, workers on two; a test that takes one away is followed by one that adds one."""
    async with Fleet() as fleet:
        yield fleet


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print what a reader of the run wants to know."""

    def print_now(text: str) -> None:
        with capsys.disabled():
            print(f" [{text}] ", end="")

    return print_now


def bodies(number: int, num_tokens: int) -> list[dict[str, Any]]:
    """Requests of which each has an answer of its own."""
    return [
        {"model": "fake", "prompt": f"bird {n}", "max_tokens": num_tokens, "temperature": 0}
        for n in range(number)
    ]


async def check_all(streams: list[TimedStream], asked: list[dict[str, Any]]) -> None:
    """All streams end as unmoved ones."""
    for stream, body in zip(streams, asked, strict=True):
        await check_whole(stream, body)


async def test_all_of_it_listens_on_loopback_only(fleet: Fleet) -> None:
    listening = fleet.marked.listening()
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    assert any("godwit head" in command for command in listening.values())
    assert any("raylet" in command for command in listening.values())
    assert not {
        address: command for address, command in listening.items() if address.split(":")[0] not in loopback
    }


async def test_a_node_that_drains_is_left_live_before_its_deadline(
    fleet: Fleet, say: Callable[[str], None]
) -> None:
    await fleet.ready()
    asked, streams, leaving, theirs = await busy(fleet, 300)
    end_s = fleet.drain(leaving, deadline_s=30)
    await fleet.has_workers(len(fleet.nodes) - 1)
    left_s = time.time()
    assert left_s < end_s
    assert theirs <= {one.id for one in (await fleet.state()).requests}  # they left in the middle
    await check_all(streams, asked)
    for request in theirs:
        assert await fleet.outcomes(request) == [("tokens", "done")]
    await fleet.ends(leaving)  # nothing of ours keeps it
    say(f"drained {end_s - left_s:.1f} s before the deadline of 30 s; {longest_gap(streams)}")


async def test_a_node_that_is_added_is_used(fleet: Fleet) -> None:
    added = await fleet.add_node()
    assert fleet.worker_of(added) in await fleet.has_workers(len(fleet.nodes))
    asked = bodies(4 * len(fleet.nodes), 150)
    streams = await fleet.begun(asked)
    assert fleet.worker_of(added) in {one.worker for one in (await fleet.state()).requests}
    await check_all(streams, asked)


async def test_the_head_s_actor_is_restarted_by_ray_and_streams_go_on(
    fleet: Fleet, say: Callable[[str], None]
) -> None:
    await fleet.ready()
    asked = bodies(4, 500)
    streams = await fleet.begun(asked)
    actor, head = fleet.head_actor(), fleet.head()
    await fleet.kill(actor)
    await fleet.add_node()  # only a controller that lives gives it a worker
    await fleet.has_workers(len(fleet.nodes))
    assert fleet.head_actor() != actor
    assert fleet.head() == head
    await check_all(streams, asked)
    for stream in streams:
        assert await fleet.outcomes(stream.request) == []
    say(longest_gap(streams))


async def test_a_node_that_dies_is_noticed_by_our_links_before_ray_knows(
    fleet: Fleet, say: Callable[[str], None]
) -> None:
    await fleet.ready()
    asked, streams, dying, theirs = await busy(fleet, 400)
    name = fleet.worker_of(dying)
    worker, raylet = fleet.process_of(dying), fleet.raylet_of(dying)
    await fleet.kill(raylet)
    await fleet.kill(worker)
    await fleet.wait_for(
        lambda status: all(one.worker not in (None, name) for one in status.requests if one.id in theirs)
    )
    assert theirs <= {one.id for one in (await fleet.state()).requests}
    assert fleet.is_alive_to_ray(dying)
    await check_all(streams, asked)
    for request in theirs:
        assert await fleet.outcomes(request) == [("failover", "done")]
    await fleet.ends(dying)
    say(longest_gap(streams))


async def test_a_head_that_dies_comes_back_and_knows_its_cluster(fleet: Fleet) -> None:
    await fleet.ready()
    names = await fleet.has_workers(len(fleet.nodes))
    head = fleet.head()
    await fleet.kill(head)
    assert sorted(await fleet.has_workers(len(fleet.nodes))) == sorted(names)
    assert fleet.head() != head
    asked = bodies(8, 20)
    await check_all(await fleet.begun(asked, 1), asked)


async def test_a_worker_that_dies_is_started_again(fleet: Fleet) -> None:
    await fleet.ready()
    worker = fleet.process_of(fleet.nodes[0])
    await fleet.kill(worker)
    await fleet.has_workers(len(fleet.nodes) - 1)
    await fleet.has_workers(len(fleet.nodes))
    assert fleet.process_of(fleet.nodes[0]) != worker


async def test_a_node_that_is_told_to_end_is_left_live_first(fleet: Fleet) -> None:
    await fleet.ready()
    ending = await fleet.add_node_as_process()
    assert fleet.worker_of(ending) in await fleet.has_workers(len(fleet.nodes))
    asked = bodies(2 * len(fleet.nodes), 300)
    streams = await fleet.begun(asked)
    name = fleet.worker_of(ending)
    theirs = {one.id for one in (await fleet.state()).requests if one.worker == name}
    assert theirs
    ending.terminate()
    await fleet.ends(ending)
    await check_all(streams, asked)
    for request in theirs:
        assert await fleet.outcomes(request) == [("tokens", "done")]


async def test_down_then_up_with_the_head_in_the_driver(fleet: Fleet) -> None:
    assert "up on this Ray cluster" in await fleet.godwit("up", status=1)
    await fleet.godwit("down")
    assert not fleet.own_pids()
    join = fleet.url.replace("127.0.0.1", "localhost")
    driver = await fleet.up("--head", "driver", "--join", join)
    await fleet.has_workers(len(fleet.nodes))
    asked = bodies(2, 20)
    await check_all(await fleet.begun(asked, 1), asked)
    driver.terminate()
    said, _ = await driver.communicate()
    assert driver.returncode == 0, said.decode()
    assert "Ctrl-C stops it" in said.decode()
    assert f"Godwit serves on {join}/v1" in said.decode()
    assert not fleet.own_pids()


async def busy(
    fleet: Fleet, num_tokens: int
) -> tuple[list[dict[str, Any]], list[TimedStream], Any, set[str]]:
    """Two requests a worker, in the middle: bodies, streams, one node, and the requests that are there."""
    asked = bodies(2 * len(fleet.nodes), num_tokens)
    streams = await fleet.begun(asked)
    node = fleet.nodes[0]
    name = fleet.worker_of(node)
    theirs = {one.id for one in (await fleet.state()).requests if one.worker == name}
    assert len(theirs) == 2
    return asked, streams, node, theirs


def longest_gap(streams: list[TimedStream]) -> str:
    """For a reader of the run."""
    return f"longest gap between tokens {max(stream.longest_gap_s for stream in streams):.2f} s"

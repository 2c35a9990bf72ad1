"""The scheduler's decisions as a stream of JSON lines."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from godwit.errors import BadRequestError, OverloadedError
from tests.admin.scripted import DEADLINE_S, Head, info

pytestmark = pytest.mark.anyio


async def _all(head: Head, since: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in head.admin.events(since)]


async def test_decisions_come_with_their_reasons_and_wall_clock_times(head: Head) -> None:
    await head.join("w1", info("a", is_loaded=True))
    asking = head.complete("a")
    await head.until(lambda status: bool(status.requests) and status.requests[0].worker == "w1")
    events = await _all(head)
    assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
    start = next(one for one in events if one["kind"] == "Start")
    assert (start["worker"], start["model"]) == ("w1", "a")
    assert start["reason"]
    assert abs(datetime.fromisoformat(start["at"]) - datetime.now(UTC)) < timedelta(seconds=DEADLINE_S)
    assert await _all(head, since=start["seq"]) == events[start["seq"] :]
    asking.cancel()


async def test_a_follower_hears_what_comes_until_the_head_stops(head: Head) -> None:
    await head.join("w1", info("a"))
    seen = len(await _all(head))
    lines = head.admin.events(seen, follow=True)
    following = asyncio.ensure_future(anext(lines))
    await head.join("w2", info("a"))
    async with asyncio.timeout(DEADLINE_S):
        told = json.loads(await following)
        assert (told["seq"], told["kind"], told["worker"]) == (seen + 1, "WorkerJoined", "w2")
        # Followers do not keep the head from stopping, nor does it cut them in the middle of a line.
        rest = asyncio.ensure_future(_collect(lines))
        await head.stop()
        assert all(line.endswith(b"\n") for line in await rest)


async def _collect(lines: Any) -> list[bytes]:
    return [line async for line in lines]


async def test_followers_are_few(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.admin.events.MAX_FOLLOWERS", 1)
    await head.join("w1", info("a"))
    lines = head.admin.events(follow=True)
    await anext(lines)
    with pytest.raises(OverloadedError, match="1 clients follow"):
        await anext(head.admin.events(follow=True))
    assert await _all(head)
    await lines.aclose()  # type: ignore[attr-defined]  # it is a generator
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await anext(head.admin.events(follow=True))
                return
            except OverloadedError:
                pass  # the head hears of the end of a connection in its own time


@pytest.mark.parametrize("since", ["x", "-1", "1e3", "9" * 5000])
async def test_since_is_a_number(head: Head, since: str) -> None:
    async with head.session.get("/admin/events", params={"since": since}) as response:
        assert response.status == BadRequestError.status
        assert "since" in (await response.json())["error"]["message"]

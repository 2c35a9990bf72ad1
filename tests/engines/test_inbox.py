"""The bounded queue between callers and an engine's thread."""

import pytest

from godwit.engines.inbox import Inbox
from godwit.errors import EngineError


def test_commands_come_in_order_and_once() -> None:
    inbox: Inbox[int] = Inbox(10)
    for item in range(3):
        inbox.put(item)
    assert inbox.take(0) == [0, 1, 2]
    assert inbox.take(0) == []


def test_a_full_inbox_means_a_stalled_taker_and_still_lets_urgent_commands_in() -> None:
    inbox: Inbox[int] = Inbox(2)
    inbox.put(0)
    inbox.put(1)
    with pytest.raises(EngineError, match="stalled"):
        inbox.put(2)
    inbox.put(3, is_urgent=True)
    assert inbox.take(None) == [0, 1, 3]

"""Virtual time: events in the total order (time, seq)."""

import heapq
from collections.abc import Callable

Act = Callable[[], None]


class Event:
    """Something that will happen; it can be called off."""

    __slots__ = ("act", "at_s")

    def __init__(self, at_s: float, act: Act) -> None:
        self.at_s = at_s
        self.act: Act | None = act

    def cancel(self) -> None:
        """Let it not happen."""
        self.act = None


class Loop:
    """A clock that jumps from event to event. Events of one instant happen in the order of their making, but
    those of a higher `priority` number after all others."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, int, Event]] = []
        self._seq = 0

    def now(self) -> float:
        """Virtual seconds since the beginning: a `ports.Clock`."""
        return self.now_s

    def at(self, at_s: float, act: Act, priority: int = 0) -> Event:
        """Let something happen then, or now if that is past."""
        event = Event(max(at_s, self.now_s), act)
        self._seq += 1
        heapq.heappush(self._heap, (event.at_s, priority, self._seq, event))
        return event

    def after(self, seconds: float, act: Act, priority: int = 0) -> Event:
        """Let something happen so many seconds from now."""
        return self.at(self.now_s + seconds, act, priority)

    def step(self) -> bool:
        """Let the next thing happen; False where there is none."""
        while self._heap:
            at_s, _, _, event = heapq.heappop(self._heap)
            if event.act is not None:
                self.now_s = at_s
                self.num_events += 1
                event.act()
                return True
        return False

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf where nothing will."""
        while self._heap and self._heap[0][3].act is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

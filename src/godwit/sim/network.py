"""Links in virtual time: frames arrive in order, after those before them and a delay, or are lost with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from godwit.sim.loop import Event, Loop
from godwit.types import WorkerId

Link = tuple[WorkerId, WorkerId]
Deliver = Callable[[WorkerId, WorkerId, bytes], None]
HEAD = WorkerId("head")


@dataclass(slots=True)
class _Way:
    """One direction between two; `frozen` keeps frames back, `extra_s` delays those that are sent, and what
    is sent on a `broken` one is lost."""

    free_s: float = 0.0
    frozen: bool = False
    broken: bool = False
    extra_s: float = 0.0
    under_way: list[tuple[Event, bytes]] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)


class Network:
    """All links. `deliver(sender, receiver, frame)` is called as each frame arrives."""

    def __init__(
        self,
        loop: Loop,
        bytes_per_s: Mapping[WorkerId, float],
        delay_s: Mapping[WorkerId, float],
        deliver: Deliver,
    ) -> None:
        self._loop = loop
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._deliver = deliver
        self._ways: dict[Link, _Way] = {}
        self.num_bytes = 0

    def send(
        self, sender: WorkerId, receiver: WorkerId, frame: bytes, num_bytes: float | None = None
    ) -> None:
        """Send a frame, which counts as `num_bytes` on the link (None: its length)."""
        size = len(frame) if num_bytes is None else num_bytes
        self.num_bytes += int(size)
        way = self._way((sender, receiver))
        if way.broken:
            return
        if way.frozen:
            way.held.append(frame)
            return
        slowest = min(self._bytes_per_s.get(sender, INF), self._bytes_per_s.get(receiver, INF))
        delay_s = max(self._delay_s.get(sender, 0.0), self._delay_s.get(receiver, 0.0))
        way.free_s = max(way.free_s, self._loop.now_s) + size / slowest
        self._schedule((sender, receiver), way, frame, way.free_s + delay_s + way.extra_s)

    def freeze(self, link: Link) -> None:
        """Keep everything back until `thaw`, what is under way included."""
        way = self._way(link)
        way.frozen = True
        for event, frame in way.under_way:
            event.cancel()
            way.held.append(frame)
        way.under_way.clear()

    def thaw(self, link: Link) -> None:
        """Let what was kept back arrive now, in order."""
        way = self._way(link)
        way.frozen = False
        held, way.held = way.held, []
        for frame in held:
            self._schedule(link, way, frame, self._loop.now_s)

    def is_frozen(self, link: Link) -> bool:
        """Whether nothing gets through."""
        return link in self._ways and self._ways[link].frozen

    def delay(self, link: Link, seconds: float) -> None:
        """Let each frame that is sent from now on take so much longer."""
        self._way(link).extra_s = seconds

    def break_off(self, link: Link, num_kept: int = 0) -> list[bytes]:
        """Lose all that is under way but the first few, and all that is sent until `clear`; what was lost."""
        way = self._way(link)
        way.broken = True
        lost = [*way.held, *(frame for _, frame in way.under_way[num_kept:])]
        way.held.clear()
        for event, _ in way.under_way[num_kept:]:
            event.cancel()
        del way.under_way[num_kept:]
        return lost

    def clear(self, link: Link) -> list[bytes]:
        """Drop what is under way or kept back, which is returned; the link is whole, as if new."""
        way = self._way(link)
        frames = [*way.held, *(frame for _, frame in way.under_way)]
        for event, _ in way.under_way:
            event.cancel()
        way.held.clear()
        way.under_way.clear()
        way.broken = False
        way.free_s = self._loop.now_s
        return frames

    def empty_s(self, link: Link) -> float:
        """When the last of what is under way now arrives."""
        way = self._way(link)
        return way.under_way[-1][0].at_s if way.under_way else self._loop.now_s

    def under_way(self, link: Link) -> list[bytes]:
        """Frames that have not arrived, oldest first."""
        way = self._way(link)
        return [*way.held, *(frame for _, frame in way.under_way)]

    def drop(self, link: Link, index: int) -> None:
        """Lose one frame that is under way. No real link does that."""
        event, _ = self._way(link).under_way.pop(index)
        event.cancel()

    def change(self, link: Link, index: int, frame: bytes) -> None:
        """Let another frame arrive in the place of one that is under way. No real link does that."""
        way = self._way(link)
        event, _ = way.under_way[index]
        event.act = self._arrive(link, way, frame)
        way.under_way[index] = (event, frame)

    def overtake(self, link: Link, index: int) -> None:
        """Let one frame that is under way arrive now, before those ahead of it. No real link does that."""
        way = self._way(link)
        event, frame = way.under_way.pop(index)
        event.cancel()
        self._deliver(*link, frame)

    def num_under_way(self, link: Link) -> int:
        """How many frames move; those that are kept back do not."""
        return len(self._way(link).under_way)

    @property
    def links(self) -> list[Link]:
        """All links that were ever used, by direction."""
        return list(self._ways)

    @property
    def busy(self) -> list[Link]:
        """The links that have something under way."""
        return [link for link, way in self._ways.items() if way.under_way or way.held]

    def _way(self, link: Link) -> _Way:
        way = self._ways.get(link)
        if way is None:
            way = self._ways[link] = _Way()
        return way

    def _schedule(self, link: Link, way: _Way, frame: bytes, at_s: float) -> None:
        last_s = way.under_way[-1][0].at_s if way.under_way else 0.0

        arrive = self._arrive(link, way, frame)
        way.under_way.append((self._loop.at(max(at_s, last_s), arrive), frame))

    def _arrive(self, link: Link, way: _Way, frame: bytes) -> Callable[[], None]:
        def arrive() -> None:
            way.under_way.pop(0)
            self._deliver(*link, frame)

        return arrive


INF = float("inf")

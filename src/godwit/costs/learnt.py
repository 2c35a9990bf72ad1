"""What moves and loads teach: a line or a constant for each key and one for its pool, and sizes of KV.

All of it is bounded: workers come and go, and what was longest not asked for is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from godwit.costs.fit import Line, OnlineConstant, OnlineLine
from godwit.costs.kv import KvSize

K = TypeVar("K")
V = TypeVar("V")
Key = tuple[str, str]

_POINTS_APART = 1.5


class Recent(Generic[K, V]):
    """At most `size` values by key; one more pushes out the one that was longest not asked for."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"there is room for at least 1, not {size}")
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of a key, which thereby stays; None where there is none."""
        if (value := self._values.get(key)) is not None:
            self._values.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """The same for people who look: it changes nothing."""
        return self._values.get(key)

    def setdefault(self, key: K, new: Callable[[], V]) -> V:
        """The value of a key, made by `new` where there is none."""
        value = self._values.setdefault(key, new()) if key not in self._values else self._values[key]
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


class Learning(Protocol):
    """A line as it stands, and how many points taught it."""

    @property
    def n(self) -> int: ...

    @property
    def line(self) -> Line: ...


@dataclass(frozen=True, slots=True)
class Untaught:
    """A line that no move has taught."""

    line: Line
    n: int = 0


class PooledLines:
    """A line for each key and one for each pool, which all of its keys' points teach. Not thread-safe.

    A key without points has the line that `given` has for it, else its pool's; a pool without points has the
    line that `assumed` has for it. A key's own few points scale that line, many points replace it
    (`godwit.costs.fit.OnlineLine`).
    """

    def __init__(
        self, given: Callable[[Key], Line | None], assumed: Callable[[str], Line], max_kept: int
    ) -> None:
        self._given = given
        self._assumed = assumed
        self._own: Recent[Key, OnlineLine] = Recent(max_kept)
        self._pools: Recent[str, OnlineLine] = Recent(max_kept)

    @property
    def keys(self) -> list[Key]:
        """Those with points of their own, in order."""
        return sorted(self._own)

    @property
    def pools(self) -> list[str]:
        """Those with points, in order."""
        return sorted(self._pools)

    def line(self, pool: str, key: Key) -> Line:
        """The key's line as it stands; it counts as asked for."""
        prior = self._prior(pool, key)
        if (own := self._own.get(key)) is None:
            return prior
        own.prior = prior
        return own.line

    def learn(self, pool: str, key: Key, x: float, y: float) -> None:
        """One more point of a key."""
        self._own.setdefault(key, lambda: OnlineLine(self._prior(pool, key))).add(x, y)
        self._pools.setdefault(pool, lambda: OnlineLine(self._assumed(pool))).add(x, y)

    def of_key(self, pool: str, key: Key) -> Learning:
        """The same as `line` for people who look: it changes nothing."""
        if (own := self._own.peek(key)) is not None:
            own.prior = self._peek_prior(pool, key)
            return own
        return Untaught(given) if (given := self._given(key)) is not None else self.of_pool(pool)

    def of_pool(self, pool: str) -> Learning:
        """The pool's line, for people who look."""
        return self._pools.peek(pool) or Untaught(self._assumed(pool))

    def _peek_prior(self, pool: str, key: Key) -> Line:
        return given if (given := self._given(key)) is not None else self.of_pool(pool).line

    def _prior(self, pool: str, key: Key) -> Line:
        if (given := self._given(key)) is not None:
            return given
        return self._assumed(pool) if (line := self._pools.get(pool)) is None else line.line


class PooledConstants:
    """A constant for each key and one for each pool, which all of its keys' values teach. Not thread-safe.

    A key without values has what `given` has for it, else its pool's; a pool without values has what
    `assumed` says of it.
    """

    def __init__(
        self,
        assumed: Callable[[str], float],
        max_kept: int,
        given: Callable[[Key], float | None] = lambda _: None,
    ) -> None:
        self._assumed = assumed
        self._given = given
        self._own: Recent[Key, OnlineConstant] = Recent(max_kept)
        self._pools: Recent[str, OnlineConstant] = Recent(max_kept)

    @property
    def keys(self) -> list[Key]:
        """Those with values of their own, in order."""
        return sorted(self._own)

    @property
    def pools(self) -> list[str]:
        """Those with values, in order."""
        return sorted(self._pools)

    def value(self, pool: str, key: Key) -> float:
        """The key's constant as it stands; it counts as asked for."""
        pooled, own = self._pools.get(pool), self._own.get(key)
        # A single value of its own is one of the pool's as well, and doubted where it stands alone.
        if own is not None and own.n > 1:
            return own.value
        if (given := self._given(key)) is not None:
            return given
        return self._assumed(pool) if pooled is None else pooled.value

    def learn(self, pool: str, key: Key, value: float) -> None:
        """One more value of a key."""
        given = self._given(key)
        prior = self.of_pool(pool).value if given is None else given
        own = self._own.setdefault(key, lambda: OnlineConstant(prior))
        own.prior = prior
        own.add(value)
        self._pools.setdefault(pool, lambda: OnlineConstant(self._assumed(pool))).add(value)

    def of_key(self, pool: str, key: Key) -> OnlineConstant:
        """The same as `value` for people who look: it changes nothing."""
        own = self._own.peek(key)
        if own is not None and own.n > 1:
            return own
        return self.of_pool(pool) if (given := self._given(key)) is None else OnlineConstant(given)

    def of_pool(self, pool: str) -> OnlineConstant:
        """The pool's constant, for people who look."""
        return self._pools.peek(pool) or OnlineConstant(self._assumed(pool))


@dataclass(slots=True)
class KvSizes:
    """One model's KV sizes as moves have shown them: few points (tokens, bytes), each far from the next.

    Sizes are exact, so the newest wins: what contradicts it or lies near it is dropped. `n` moves taught it.
    """

    n: int = 0
    points: tuple[tuple[float, float], ...] = field(default=())

    def learn(self, tokens: int, size: int) -> None:
        """A range of the latest `tokens` tokens took `size` bytes."""
        self.n += 1
        kept = [
            (other, other_size)
            for other, other_size in self.points
            if not 1 / _POINTS_APART < other / tokens < _POINTS_APART
            and (other < tokens) == (other_size < size)
        ]
        self.points = tuple(sorted([*kept, (tokens, size)]))

    @property
    def kv(self) -> KvSize:
        """The size as the cost model takes it; needs one point."""
        return KvSize.measured(self.points)

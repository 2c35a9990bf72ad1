"""Finds what is still remembered of requests and moves that are over, wherever it is."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

_CONTAINERS = (list, tuple, set, frozenset, deque)


def remembered(root: object, is_wanted: Callable[[str], bool], skip: tuple[type, ...]) -> Iterator[str]:
    """Paths from an object to texts that are wanted, through attributes and containers.

    Not through functions, nor through objects of the types to `skip`.
    """
    seen: set[int] = set()
    left: list[tuple[str, object]] = [(type(root).__name__, root)]
    while left:
        path, one = left.pop()
        if isinstance(one, str):
            if is_wanted(one):
                yield f"{path}: {one}"
            continue
        if isinstance(one, (int, float, bytes, type, *skip)) or one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            left += [(f"{path} key", key) for key in one]
            left += [(f"{path}[{key}]", value) for key, value in one.items()]
        elif isinstance(one, _CONTAINERS):
            left += [(f"{path}[…]", value) for value in one]
        elif type(one).__module__.startswith("godwit."):
            left += [(f"{path}.{name}", getattr(one, name)) for name in _attributes(one)]


def _attributes(one: object) -> Iterator[str]:
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from (name for name in names if not name.startswith("__") and hasattr(one, name))
    yield from getattr(one, "__dict__", {})

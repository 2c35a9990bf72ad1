"""What the protocol's machines go through, in this process or in a worker's.

As a command it stands before a worker's own, runs that in its own process, and writes to a file:
`python traced.py FILE python -m godwit worker --supervised`.
"""

import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
from msgspec import Struct

from godwit.protocol.machine import Stateful, Table


class Change(Struct, frozen=True):
    """One machine went into another state: the `number`-th of those that were seen."""

    at_s: float
    number: int
    machine: str
    text: str


@contextmanager
def tracing(tell: Callable[[Change], None], now: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Tell of each change of state of any move's machine, for the block."""
    usual = Table.step
    # By identity, as machines are values; kept, so that no other gets the same identity.
    known: dict[int, tuple[int, Stateful]] = {}
    numbers: set[int] = set()

    def step(table: Table[Stateful], data: Stateful, event: object) -> tuple[Stateful, tuple[object, ...]]:
        after, effects = usual(table, data, event)
        number = known[id(data)][0] if id(data) in known else len(numbers)
        numbers.add(number)
        known[id(data)], known[id(after)] = (number, data), (number, after)
        if after.state is not data.state:
            text = f"{data.state.value} on {type(event).__name__}: {after.state.value}"
            tell(Change(now(), number, table.name, text))
        return after, effects

    with patch.object(Table, "step", step):
        yield


def main() -> None:
    """Be the worker whose command follows the file's name."""
    sys.path.pop(0)
    file, *command = sys.argv[1:]
    sys.argv = command[command.index("-m") + 1 :]
    with Path(file).open("ab", buffering=0) as out:

        def tell(change: Change) -> None:
            out.write(msgspec.json.encode(change) + b"\n")

        with tracing(tell):
            runpy.run_module("godwit", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

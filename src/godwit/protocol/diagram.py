"""The three transition tables as Mermaid diagrams and Markdown tables, for docs/architecture.md.

`python -m godwit.protocol.diagram` prints them; a test checks that the page has them as they are.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from godwit.protocol.coordinator import COORDINATOR
from godwit.protocol.destination import DESTINATION
from godwit.protocol.machine import Table
from godwit.protocol.source import SOURCE

TABLES: tuple[Table[Any], ...] = (COORDINATOR, SOURCE, DESTINATION)


def mermaid(table: Table[Any]) -> str:
    """The states and what leads from one to another; rows that change no state are left to the table."""
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {_id(state)}' for state in table.states]
    lines.append(f"    [*] --> {_id(next(iter(table.states)))}")
    changes: dict[tuple[Enum, Enum], list[str]] = {}
    for (state, event), row in table.rows.items():
        for after in row.next:
            if after is not state:
                changes.setdefault((state, after), []).append(event.__name__)
    lines += [
        f"    {_id(state)} --> {_id(after)}: {', '.join(names)}" for (state, after), names in changes.items()
    ]
    lines += [f"    {_id(state)} --> [*]" for state in table.states if state in table.ends]
    return "\n".join(lines)


def markdown(table: Table[Any]) -> str:
    """All rows, one line each."""
    lines = ["| in state | on | goes to | why |", "|---|---|---|---|"]
    for (state, event), row in table.rows.items():
        after = " or ".join(one.value for one in row.next)
        lines.append(f"| {state.value} | {event.__name__} | {after} | {row.why} |")
    return "\n".join(lines)


def render() -> str:
    """All three tables as one piece of Markdown."""
    return "\n\n".join(part for table in TABLES for part in _section(table))


def _section(table: Table[Any]) -> Iterator[str]:
    yield f"### The {table.name}"
    yield f"```mermaid\n{mermaid(table)}\n```"
    yield markdown(table)


def _id(state: Enum) -> str:
    return state.name.lower()


if __name__ == "__main__":
    print(render())

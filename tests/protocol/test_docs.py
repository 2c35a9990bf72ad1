"""docs/architecture.md has the tables as they are, and names tests that exist; GODWIT_REWRITE=1 renews it."""

import re

from godwit.protocol.coordinator import COORDINATOR
from godwit.protocol.diagram import TABLES, mermaid, render
from tests.pages import DOCS, check_generated
from tests.protocol import test_failure_table

PAGE = DOCS / "architecture.md"


def test_the_page_has_the_tables_as_they_are() -> None:
    check_generated(PAGE, "tables", render())


def test_every_row_of_the_failure_table_names_its_test_and_every_test_has_a_row() -> None:
    named = set(re.findall(r"`(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    there = {name for name in vars(test_failure_table) if name.startswith("test_")}
    assert named == there


def test_a_diagram_has_every_state_and_every_change_of_it() -> None:
    diagram = mermaid(COORDINATOR)
    assert "moving --> handed_over: SourceStopped" in diagram
    for table in TABLES:
        for state in table.states:
            assert f"as {state.name.lower()}\n" in mermaid(table)

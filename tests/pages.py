"""Pages of docs/ with a part that is generated."""

import os
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def check_generated(page: Path, name: str, generated: str) -> None:
    """Assert that the part between the marks of this name is as generated; GODWIT_REWRITE puts it there."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    wanted = f"{before}{begin}\n{generated}\n\n{end}{after}"
    if os.environ.get("GODWIT_REWRITE"):
        page.write_text(wanted, encoding="utf-8")
    assert text == wanted or os.environ.get("GODWIT_REWRITE")

"""Each story in tests/scripts goes exactly as it is written; GODWIT_REWRITE=1 writes it down anew."""

import os
from pathlib import Path

import pytest

from tests.protocol.story import play

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    played = play(script)
    if os.environ.get("GODWIT_REWRITE"):
        path.write_text(played, encoding="utf-8")
    assert played.splitlines() == script.splitlines() or os.environ.get("GODWIT_REWRITE")


def test_there_are_stories() -> None:
    assert len(SCRIPTS) >= 10

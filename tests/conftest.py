"""What holds for all tests."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    yield
    # A command that ran in this process gave the log its runner's stderr, which is closed by now.
    structlog.reset_defaults()

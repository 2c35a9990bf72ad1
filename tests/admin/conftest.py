"""Fixtures: what serves in production, and a head in this process."""

from collections.abc import AsyncIterator

import pytest

from tests.admin.scripted import Head


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """asyncio with uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    """A head that keeps nothing."""
    async with Head() as one:
        yield one

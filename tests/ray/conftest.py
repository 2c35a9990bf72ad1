"""For tests on a real Ray cluster on this machine; not of `make test`: see the Makefile's test-ray."""

import os

import pytest

# Ray replaces 127.0.0.1 by this machine's outer address, unless it believes that no other machine takes part.
# It reads both variables when it is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What serves in production: asyncio with uvloop."""
    return "asyncio", {"use_uvloop": True}

"""Small chunks, so that the KV of a few tokens takes several."""

import pytest

from godwit.protocol import kv


@pytest.fixture(scope="session", autouse=True)
def small_chunks() -> None:
    kv.CHUNK_BYTES, kv.WINDOW_BYTES = 200, 400

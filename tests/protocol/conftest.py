"""Small blocks and chunks, so that the KV of a few tokens takes several."""

import pytest

from godwit.costs import shipping
from godwit.protocol import kv


@pytest.fixture(scope="session", autouse=True)
def small_blocks() -> None:
    kv.CHUNK_BYTES, kv.WINDOW_BYTES, kv.MIN_TAIL_TOKENS = 200, 400, 2
    shipping.SPLIT_BLOCK_TOKENS, shipping.BLOCK_TOKENS, shipping.SPLIT_GRAIN_TOKENS = (2, 4, 4), 6, 1

"""Small blocks and chunks, so that the KV of a few tokens takes several."""

from collections.abc import Iterator

import pytest

from godwit.costs import shipping
from godwit.protocol import kv


@pytest.fixture(scope="package", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("CHUNK_BYTES", 200), ("WINDOW_BYTES", 400), ("MIN_TAIL_TOKENS", 2)):
            patch.setattr(kv, name, size)
        patch.setattr(shipping, "SPLIT_BLOCK_TOKENS", (2, 4))
        patch.setattr(shipping, "BLOCK_TOKENS", 6)
        patch.setattr(shipping, "SPLIT_GRAIN_TOKENS", 1)
        yield

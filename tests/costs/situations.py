"""Servers, overheads and KV sizes at random, over the ranges that occur."""

from hypothesis import strategies as st

from godwit.costs.crossover import MigrationCost, Server
from godwit.costs.kv import KvSize

OVERHEADS_S = st.floats(0, 3)
PREFILLS_TPS = st.floats(10, 50_000)
BANDWIDTHS = st.floats(1e5, 1e11)
CONTEXTS = st.integers(0, 600)

costs = st.builds(MigrationCost, OVERHEADS_S, OVERHEADS_S, st.sampled_from([0.0, 16.0]))
linear_kvs = st.builds(KvSize.linear, st.floats(100, 500_000))


@st.composite
def bent_kvs(draw: st.DrawFn) -> KvSize:
    """Two to five straight pieces whose slopes have nothing to do with each other."""
    steps = draw(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 10**8)), min_size=2, max_size=5))
    tokens = size = 0
    points = []
    for more_tokens, more_bytes in steps:
        tokens, size = tokens + more_tokens, size + more_bytes
        points.append((tokens, size))
    return KvSize.measured(points)


kvs = st.one_of(linear_kvs, bent_kvs())
servers = st.builds(Server, PREFILLS_TPS, BANDWIDTHS, kvs)

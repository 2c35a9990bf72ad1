"""From a plan for a move to the blocks in which its KV goes."""

from godwit.costs.crossover import MigrationCost, Plan
from godwit.types import KvPlan

BLOCK_S = 0.05
"""A split's two sides meet where a block begins: so little time should one take on either side."""
SPLIT_BLOCK_TOKENS = (16, 32, 64)
"""Smaller ones take longer to copy than they save; larger ones would not fit a prefill's chunk."""
SPLIT_GRAIN_TOKENS = SPLIT_BLOCK_TOKENS[0]
"""What a split computes too much or waits too long, as tokens: one step of the destination."""
BLOCK_TOKENS = 128
"""Of KV that goes in order, which nobody meets."""


def move_cost(transfer_overhead_s: float, recompute_overhead_s: float) -> MigrationCost:
    """The cost model with the grain that splits have in these blocks."""
    return MigrationCost(transfer_overhead_s, recompute_overhead_s, SPLIT_GRAIN_TOKENS)


def kv_plan(plan: Plan, context_tokens: int) -> KvPlan | None:
    """How the KV of a context goes; None where none does."""
    shipped, computed = plan.shipped_tokens, context_tokens - plan.shipped_tokens
    if shipped == 0:
        return None
    if computed == 0:
        return KvPlan(0.0, BLOCK_TOKENS, plan.ships_tail)
    block_s = max(plan.shipping_s / shipped, plan.computing_s / computed)
    fitting = [size for size in SPLIT_BLOCK_TOKENS if size * block_s <= BLOCK_S]
    return KvPlan(computed / context_tokens, max(fitting, default=SPLIT_BLOCK_TOKENS[0]))

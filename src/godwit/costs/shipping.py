"""From a plan for a move to the blocks in which its KV goes."""

from godwit.costs.crossover import Method, Plan
from godwit.types import KvPlan

BLOCK_S = 0.05
"""A split's two sides meet where a block begins: so little time should its way take."""
SPLIT_BLOCK_TOKENS = (16, 32, 64)
"""Smaller ones take longer to copy than they save; larger ones would not fit a prefill's chunk."""
BLOCK_TOKENS = 128
"""Of KV that goes in order, which nobody meets."""


def kv_plan(plan: Plan, context_tokens: int) -> KvPlan | None:
    """How the KV of a context goes; None where none does."""
    if plan.shipped_tokens == 0:
        return None
    if plan.method is not Method.SPLIT:
        return KvPlan(0.0, BLOCK_TOKENS, plan.ships_tail)
    per_block = plan.shipped_tokens * BLOCK_S / plan.shipping_s if plan.shipping_s > 0 else BLOCK_TOKENS
    block_tokens = max(size for size in SPLIT_BLOCK_TOKENS if size <= max(per_block, SPLIT_BLOCK_TOKENS[0]))
    computed = context_tokens - plan.shipped_tokens
    return KvPlan(max(computed, 1) / context_tokens, block_tokens)

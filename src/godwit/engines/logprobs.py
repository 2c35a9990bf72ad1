"""Log-probabilities over raw logits."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from godwit.types import Alternative, TokenId


def alternatives(
    logits: NDArray[np.float32], chosen: TokenId, num: int, piece: Callable[[TokenId], bytes]
) -> tuple[Alternative, ...]:
    """The chosen token, then the `num` most likely, best first (of equals the lower id); natural log."""
    peak = logits.max()
    total = peak + np.log(np.exp(logits - peak, dtype=np.float32).sum(dtype=np.float64))
    top: list[int] = []
    if num > 0:
        border = np.partition(logits, -num)[-num]
        near = np.flatnonzero(logits >= border)
        top = [int(t) for t in near[np.lexsort((near, -logits[near]))][:num]]
    return tuple(Alternative(t, piece(t), float(logits[t] - total)) for t in (chosen, *top))

"""Bias and penalties, by their published formulas."""

import numpy as np
from msgspec.structs import replace

from godwit.engines.shaping import Shaping
from godwit.types import Sampling

NONE = Sampling(seed=1, max_tokens=1)


def shaped(sampling: Sampling, *, prompt: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> list[float]:
    shaping = Shaping(sampling, prompt)
    for token in outputs:
        shaping.accept(token)
    logits = np.array([4.0, 2.0, -2.0, 0.0], dtype=np.float32)
    shaping.apply(logits)
    return [float(value) for value in logits]


def test_without_settings_nothing_changes() -> None:
    assert Shaping(NONE, (0, 1)).changes_nothing
    assert shaped(NONE, prompt=(0,), outputs=(1, 1)) == [4.0, 2.0, -2.0, 0.0]


def test_bias_adds_up() -> None:
    biased = replace(NONE, logit_bias=((1, 3.0), (2, -1.0), (1, 1.0)))
    assert not Shaping(biased, ()).changes_nothing
    assert shaped(biased) == [4.0, 6.0, -3.0, 0.0]


def test_frequency_grows_with_each_output_and_presence_does_not() -> None:
    both = replace(NONE, frequency_penalty=0.5, presence_penalty=0.25)
    assert shaped(both, prompt=(0, 3), outputs=(1, 1, 2)) == [4.0, 0.75, -2.75, 0.0]


def test_repetition_makes_tokens_of_prompt_and_output_less_likely_on_either_side_of_zero() -> None:
    repeated = replace(NONE, repetition_penalty=2.0)
    assert shaped(repeated, prompt=(0, 0), outputs=(2, 3)) == [2.0, 2.0, -4.0, 0.0]

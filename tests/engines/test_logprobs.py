"""Log-probabilities against a plain reference."""

import numpy as np

from godwit.engines.logprobs import alternatives


def piece(token: int) -> bytes:
    return str(token).encode()


def test_they_are_the_log_softmax_of_the_raw_logits() -> None:
    logits = np.random.default_rng(1).normal(0, 4, 5000).astype(np.float32)
    reference = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    listed = alternatives(logits, 17, 5, piece)
    assert [a.id for a in listed] == [17, *np.argsort(-logits)[:5]]
    for entry in listed:
        assert abs(entry.logprob - reference[entry.id]) < 1e-4
        assert entry.text == str(entry.id).encode()


def test_of_equals_the_lower_id_comes_first_and_zero_means_the_chosen_one_only() -> None:
    logits = np.zeros(10, dtype=np.float32)
    assert [a.id for a in alternatives(logits, 4, 3, piece)] == [4, 0, 1, 2]
    assert [a.id for a in alternatives(logits, 4, 0, piece)] == [4]

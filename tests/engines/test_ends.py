"""Which ids end an answer: the same as where llama.cpp has the model's own file."""

import pytest

pytest.importorskip("llama_cpp")

from godwit.engines.checkpoints import locate
from godwit.engines.ends import llama_ends
from godwit.engines.gguf import open_vocabulary


@pytest.mark.parametrize("model", ["smollm2-135m", "gemma3-270m"])
def test_a_vocabulary_alone_has_the_ends_of_its_file(model: str) -> None:
    with open_vocabulary(locate(model, None)) as file:
        texts = {file.text(token): token for token in range(file.num_vocab)}
        ends, eos = frozenset(file.eog_ids), file.eos_id
    assert len(ends) > 1
    assert llama_ends(texts) | {eos} == ends


def test_ids_that_are_not_used_shift_none() -> None:
    assert llama_ends({"a": 3, "<|im_end|>": 7, "b": 9, "<|endoftext|>": 12}) == {7, 12}
    assert llama_ends({"a": 0}) == frozenset()

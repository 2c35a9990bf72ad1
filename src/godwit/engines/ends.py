"""Which ids of a vocabulary end an answer in llama.cpp.

It tells most of them by their texts, and its list of these changes with its versions: so it is asked itself.
"""

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

from godwit.engines.gguf import open_vocabulary
from godwit.types import TokenId

# GGUF's numbers for types.
_U32, _STRING, _ARRAY = 4, 8, 9


def llama_ends(vocabulary: Mapping[str, TokenId]) -> frozenset[TokenId]:
    """The ids that end an answer by their texts; ModelLoadError where llama.cpp is not installed."""
    tokens = sorted(vocabulary.items(), key=lambda one: one[1])
    with tempfile.TemporaryDirectory(prefix="godwit-") as folder:
        path = Path(folder) / "vocabulary.gguf"
        path.write_bytes(_vocabulary([text for text, _ in tokens]))
        with open_vocabulary(path) as file:
            return frozenset(tokens[index][1] for index in file.eog_ids if index < len(tokens))


def _vocabulary(texts: list[str]) -> bytes:
    """A GGUF file of a vocabulary alone. Its eos is a token more: without one, llama.cpp takes a number."""
    metadata = {
        "general.architecture": _string("llama"),
        "tokenizer.ggml.model": _string("gpt2"),
        "tokenizer.ggml.tokens": _strings([*texts, ""]),
        "tokenizer.ggml.merges": _strings([]),
        "tokenizer.ggml.eos_token_id": struct.pack("<II", _U32, len(texts)),
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata))
    return head + b"".join(_text(key) + value for key, value in metadata.items())


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _string(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _text(text)


def _strings(texts: list[str]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, _STRING, len(texts)) + b"".join(map(_text, texts))

"""What a GGUF file says without its weights: metadata, vocabulary, chat template, sizes."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from godwit.engines.capi import lib, load_model
from godwit.types import TokenId

_KV_VALUE_BYTES = 2  # F16
_META_BYTES = 1 << 16


class GgufFile:
    """Reads from a llama_model pointer, which may be loaded `vocab_only`.

    It never touches hyperparameters: llama.cpp aborts when asked for those of a model without weights.
    """

    def __init__(self, model: Any, path: Path) -> None:
        self._api = lib()
        self._model = model
        self.path = path
        self.vocab: Any = self._api.llama_model_get_vocab(model)
        self.num_vocab: int = self._api.llama_vocab_n_tokens(self.vocab)
        self.eog_ids = [t for t in range(self.num_vocab) if self._api.llama_vocab_is_eog(self.vocab, t)]
        self.hidden_ids = self._find_hidden()
        self._pieces: list[bytes | None] = [None] * self.num_vocab

    def meta(self, key: str) -> str | None:
        """One metadata value as text; None where the file has no such key."""
        size = _META_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            length: int = self._api.llama_model_meta_val_str(self._model, key.encode(), buffer, size)
            if length < size:
                return buffer.value.decode(errors="replace") if length >= 0 else None
            size = length + 1

    def _arch(self, key: str) -> str | None:
        return self.meta(f"{self.meta('general.architecture')}.{key}")

    @property
    def trained_context_tokens(self) -> int | None:
        value = self._arch("context_length")
        return int(value) if value else None

    @property
    def chat_template(self) -> str | None:
        text: bytes | None = self._api.llama_model_chat_template(self._model, None)
        return text.decode() if text else None

    def kv_bytes_per_token(self) -> int:
        """F16 keys and values of all layers; an upper bound for models with a sliding window."""
        layers, heads = _int(self._arch("block_count")), _int(self._arch("attention.head_count"))
        kv_heads = _int(self._arch("attention.head_count_kv")) or heads
        width = _int(self._arch("embedding_length")) // max(1, heads)
        key_len = _int(self._arch("attention.key_length")) or width
        value_len = _int(self._arch("attention.value_length")) or width
        return layers * kv_heads * (key_len + value_len) * _KV_VALUE_BYTES

    def text(self, token: TokenId) -> str:
        """A token as it is written in the vocabulary, special tokens too; "" for none (a negative id)."""
        if token < 0:
            return ""
        raw: bytes | None = self._api.llama_vocab_get_text(self.vocab, token)
        return raw.decode(errors="replace") if raw else ""

    @property
    def bos_id(self) -> TokenId:
        return int(self._api.llama_vocab_bos(self.vocab))

    @property
    def eos_id(self) -> TokenId:
        return int(self._api.llama_vocab_eos(self.vocab))

    def _find_hidden(self) -> list[TokenId]:
        """Special tokens that end nothing: they have text in the vocabulary, but none in an answer."""
        ends, is_control = set(self.eog_ids), self._api.llama_vocab_is_control
        return [t for t in range(self.num_vocab) if is_control(self.vocab, t) and t not in ends]

    def piece(self, token: TokenId) -> bytes:
        """The bytes a token stands for; b"" for special tokens."""
        known = self._pieces[token]
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: TokenId) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length: int = self._api.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def pieces(self) -> Iterator[bytes]:
        """The bytes of all ids in order."""
        return (self.piece(token) for token in range(self.num_vocab))

    @cached_property
    def max_piece_bytes(self) -> int:
        """No token stands for more bytes of a text than this."""
        return max(max(len(self.piece(t)), len(self.text(t).encode())) for t in range(self.num_vocab))

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        """Ids of `text`, special tokens recognised; one start token at most, even where `text` has one."""
        raw = text.encode()
        size = len(raw) + 8
        buffer = (self._api.llama_token * size)()
        count: int = self._api.llama_tokenize(self.vocab, raw, len(raw), buffer, size, add_special, True)
        if count < 0:
            buffer = (self._api.llama_token * -count)()
            count = self._api.llama_tokenize(self.vocab, raw, len(raw), buffer, -count, add_special, True)
        ids: list[TokenId] = list(buffer[:count])
        adds_bos = add_special and self._api.llama_vocab_get_add_bos(self.vocab)
        return ids[1:] if adds_bos and ids[:2] == [self.bos_id, self.bos_id] else ids


@contextmanager
def open_vocabulary(path: Path) -> Iterator[GgufFile]:
    """A GgufFile without weights, open for the block; ModelLoadError as `load_model`."""
    model = load_model(path, vocab_only=True)
    try:
        yield GgufFile(model, path)
    finally:
        lib().llama_model_free(model)


def _int(value: str | None) -> int:
    """A metadata number, the largest where there is one a layer ("[4, 4, 1]"), 0 where there is none."""
    return max((int(part) for part in value.strip("[]").split(",")), default=0) if value else 0

"""What a Hugging Face folder says without its weights: sizes, vocabulary, tokenizer, chat template."""

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from godwit.engines.checkpoints import cache_dir, digest, locate, make_once
from godwit.errors import ContextTooLongError, ModelLoadError
from godwit.types import TokenId

CONVERT_S = 600.0
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


def _byte_table() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table).

    Printable bytes are their own characters; the others follow from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + number): byte for number, byte in enumerate(rest)}


def find_folder(name: str, path: Path | None, python: str) -> Path:
    """A model's folder: `path`, or that of a built-in model in float32, made now if need be.

    `python` is an interpreter that has transformers, for it is made of the model's GGUF.
    """
    if path is not None:
        return path
    gguf = locate(name, None)
    script = Path(__file__).with_name("gguf_to_hf.py")

    def make(target: Path) -> None:
        # Without -P the script would take this folder's modules for packages of the same names.
        command = (python, "-P", str(script), str(gguf), str(target))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise ModelLoadError(f"{python} could not make a folder of {gguf}: {error}") from error
        if done.returncode != 0:
            raise ModelLoadError(f"{python} could not make a folder of {gguf}: {done.stderr[-500:]}")

    return make_once(cache_dir() / f"{gguf.stem}-float32", make)


class HfFolder:
    """A model folder; ModelLoadError where a file is missing or of a kind that is not understood."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ModelLoadError(f"there is no model folder {path}: give the folder that has config.json")
        self.path = path
        self._config = self._read("config.json")
        self.tokenizer = self._tokenizer()
        self.num_vocab = self._size("vocab_size")
        self.eos_ids = frozenset(_ids(self._read("generation_config.json", {}).get("eos_token_id")))
        self.eos_ids |= frozenset(_ids(self._config.get("eos_token_id")))

    def _read(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        file = self.path / name
        if default is not None and not file.is_file():
            return default
        try:
            found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise ModelLoadError(f"cannot read {file}: {error}") from error
        return found

    def _size(self, name: str) -> int:
        if not isinstance(value := self._config.get(name), int):
            raise ModelLoadError(
                f"{self.path / 'config.json'} has no {name}: only text models are understood"
            )
        return value

    def _tokenizer(self) -> Tokenizer:
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(f"{file} is missing: save the model's fast tokenizer there")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # of no class of its own
            raise ModelLoadError(f"cannot read {file}: {error}") from error
        # Some are saved with a length to cut every text to.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @property
    def vocabulary(self) -> dict[str, TokenId]:
        """The ids of all tokens that the tokenizer and the model have, by their texts."""
        found = self.tokenizer.get_vocab(with_added_tokens=True)
        return {text: token for text, token in found.items() if token < self.num_vocab}

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id; b"" for special tokens and for ids that the tokenizer does not use."""
        described = self._read("tokenizer.json")
        if (described.get("decoder") or {}).get("type") != "ByteLevel":
            raise ModelLoadError(f"{self.path}: only byte-level tokenizers are understood so far")
        added = {one["id"]: one for one in described["added_tokens"]}
        table, pieces = _byte_table(), [b""] * self.num_vocab
        for text, token in self.vocabulary.items():
            if token not in added:
                pieces[token] = bytes(table[char] for char in text)
            elif not added[token]["special"]:
                pieces[token] = text.encode()
        return pieces

    @cached_property
    def chat_template(self) -> str | None:
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return file.read_text()
        found = self._read("tokenizer_config.json", {}).get("chat_template")
        return found if isinstance(found, str) else None

    def special(self, name: str) -> str:
        """A special token's text, such as "bos_token"; "" where there is none."""
        found = self._read("tokenizer_config.json", {}).get(name)
        return str(found["content"] if isinstance(found, dict) else found or "")

    @property
    def trained_context_tokens(self) -> int | None:
        value = self._config.get("max_position_embeddings")
        return None if value is None else int(value)

    @cached_property
    def checkpoint_bytes(self) -> int:
        """The weights' files together."""
        return sum(file.stat().st_size for file in self._weights)

    @property
    def _weights(self) -> list[Path]:
        if not (found := sorted(self.path.glob("*.safetensors"))):
            raise ModelLoadError(f"{self.path} has no *.safetensors: save the weights there")
        return found

    def kv_bytes_per_token(self, dtype: str = "auto") -> int:
        """Keys and values of all layers in this type; "auto" is the weights' own."""
        config = self._config
        heads = self._size("num_attention_heads")
        width = int(config.get("head_dim") or self._size("hidden_size") // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        own = str(config.get("dtype") or config.get("torch_dtype"))
        num_bytes = _WIDTHS.get(own if dtype == "auto" else dtype, 2)
        return 2 * self._size("num_hidden_layers") * kv_heads * width * num_bytes

    def digest(self) -> str:
        """SHA-256 over the digests of all that decides what the model says."""
        names = [*self._weights, self.path / "config.json", self.path / "tokenizer.json"]
        return hashlib.sha256("".join(digest(file) for file in names).encode()).hexdigest()

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.pieces))

    def tokenize(self, text: str, *, add_special: bool, context_tokens: int) -> list[TokenId]:
        """Ids of `text`; ContextTooLongError without a look at a text that could fit in no context."""
        if len(text) > context_tokens * self._longest:
            raise ContextTooLongError(
                f"the prompt has {len(text)} characters, the context {context_tokens} tokens: shorten it",
                param="prompt",
            )
        ids: list[TokenId] = self.tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids


def _ids(value: int | Sequence[int] | None) -> Sequence[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value

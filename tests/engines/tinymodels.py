"""Tiny models with random weights, as GGUF files: architectures whose KV cannot be cut into ranges."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Value = int | float | str | Sequence[int] | Sequence[str]
Tensors = Mapping[str, NDArray[np.float32]]

WIDTH, LAYERS, CONTEXT_TOKENS = 32, 4, 16_384
INNER, STATE, RANK, KERNEL = 2 * WIDTH, 16, 2, 4
HEADS, HIDDEN = 2, 64
ALIGNMENT = 32
# GGUF's numbers for types.
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, CONTROL = 1, 3


def write_mamba(path: Path) -> Path:
    """Recurrent: each layer has one state a sequence, whatever its length."""
    random = np.random.default_rng(1)
    tensors = {
        "token_embd.weight": _weights(random, _NUM_VOCAB, WIDTH),
        "output_norm.weight": np.ones(WIDTH, dtype=np.float32),
    }
    for layer in range(LAYERS):
        here = f"blk.{layer}"
        tensors |= {
            f"{here}.attn_norm.weight": np.ones(WIDTH, dtype=np.float32),
            f"{here}.ssm_in.weight": _weights(random, 2 * INNER, WIDTH),
            f"{here}.ssm_conv1d.weight": _weights(random, INNER, KERNEL),
            f"{here}.ssm_conv1d.bias": _weights(random, INNER),
            f"{here}.ssm_x.weight": _weights(random, RANK + 2 * STATE, INNER),
            f"{here}.ssm_dt.weight": _weights(random, INNER, RANK),
            f"{here}.ssm_dt.bias": _weights(random, INNER),
            f"{here}.ssm_a": -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1)),
            f"{here}.ssm_d": np.ones(INNER, dtype=np.float32),
            f"{here}.ssm_out.weight": _weights(random, WIDTH, INNER),
        }
    sizes = {
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": INNER,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": RANK,
    }
    return _write(path, "mamba", sizes, tensors)


def write_hybrid(path: Path) -> Path:
    """LFM2: layers with a short convolution's state, and between them layers with attention."""
    random = np.random.default_rng(2)
    tensors = {
        "token_embd.weight": _weights(random, _NUM_VOCAB, WIDTH),
        "token_embd_norm.weight": np.ones(WIDTH, dtype=np.float32),
    }
    kv_heads = [HEADS if layer % 2 else 0 for layer in range(LAYERS)]
    for layer, num_kv_heads in enumerate(kv_heads):
        here = f"blk.{layer}"
        tensors |= {
            f"{here}.attn_norm.weight": np.ones(WIDTH, dtype=np.float32),
            f"{here}.ffn_norm.weight": np.ones(WIDTH, dtype=np.float32),
            f"{here}.ffn_gate.weight": _weights(random, HIDDEN, WIDTH),
            f"{here}.ffn_up.weight": _weights(random, HIDDEN, WIDTH),
            f"{here}.ffn_down.weight": _weights(random, WIDTH, HIDDEN),
        }
        if num_kv_heads:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                tensors[f"{here}.{name}.weight"] = _weights(random, WIDTH, WIDTH)
            for name in ("attn_q_norm", "attn_k_norm"):
                tensors[f"{here}.{name}.weight"] = np.ones(WIDTH // HEADS, dtype=np.float32)
        else:
            tensors[f"{here}.shortconv.conv.weight"] = _weights(random, WIDTH, KERNEL)
            tensors[f"{here}.shortconv.in_proj.weight"] = _weights(random, 3 * WIDTH, WIDTH)
            tensors[f"{here}.shortconv.out_proj.weight"] = _weights(random, WIDTH, WIDTH)
    sizes: dict[str, Value] = {
        "attention.head_count": HEADS,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": HIDDEN,
        "shortconv.l_cache": KERNEL,
        "vocab_size": _NUM_VOCAB,
    }
    return _write(path, "lfm2", sizes, tensors)


def _weights(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Large enough for the next token to depend on the ones before it."""
    return random.normal(0.0, 1.5 / shape[-1] ** 0.5, shape).astype(np.float32)


def _byte_tokens() -> list[str]:
    """One token a byte, written as GPT-2 does: bytes that do not print stand for letters from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [letters[byte] for byte in range(256)]


_TOKENS = [*_byte_tokens(), "<end>"]
_NUM_VOCAB = len(_TOKENS)


def _write(path: Path, architecture: str, sizes: Mapping[str, Value], tensors: Tensors) -> Path:
    own: dict[str, Value] = {
        "block_count": LAYERS,
        "context_length": CONTEXT_TOKENS,
        "embedding_length": WIDTH,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **sizes,
    }
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [CONTROL],
        "tokenizer.ggml.merges": [f"{_TOKENS[ord('t')]} {_TOKENS[ord('h')]}"],
        "tokenizer.ggml.eos_token_id": 256,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        # GGUF names the fastest dimension first. Its number for F32 is 0.
        shape = tensor.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(tensor.tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    match value:
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32, value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_text(str(v)) for v in value)
        case _:
            return struct.pack(f"<IIQ{len(value)}i", ARRAY, I32, len(value), *value)

"""A deterministic engine without a model: the next token is a hash of all tokens before it.

One lost, doubled or changed token anywhere changes everything after it. With a temperature the seed counts,
with penalties also where the prompt ended. Grammars are refused, since nothing here could honour them.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from godwit.engines.checkpoints import digest
from godwit.engines.limits import check_common
from godwit.engines.runner import Span
from godwit.errors import BadRequestError, EngineError, InvariantBrokenError, ModelLoadError
from godwit.ports import SequenceSpec
from godwit.types import (
    CARRIES_ALL,
    Alternative,
    Carries,
    ChatMessage,
    KvRange,
    ModelInfo,
    ModelName,
    Sampling,
    Tier,
    Token,
    TokenId,
    declaring,
)

NUM_VOCAB = 50_000
EOS_ID = NUM_VOCAB - 1
_EMOJI_LEAD_ID = 256
_FIRST_WORD_ID = 257
# A lead is the first part of a character; any byte from 0x80 to 0xBF completes it.
_LEAD_IDS = (0xC3, _EMOJI_LEAD_ID)
_ONE_LEAD_IN = 7
_SYLLABLES = [c + v for c in "bcdfghjklmnprstvwxyz" for v in "aeiou"]
_KV_BYTES_PER_TOKEN = 64
_HASH_BYTES = 8
_MASK = (1 << 64) - 1


class FakeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How the fake behaves: speeds (0: at once), when it ends, and a stall for fault tests.

    `eos_after` ends every answer at that many output tokens, `eos_probability` at random ones.
    `stall_after_steps` makes the pass after that many hang until `close`. `digest` stands for the weights,
    and loading them takes `load_s`. Ranges of KV move between fakes of the same `kv_layout`; "" has none.
    `device_bytes` is what an instance is said to take (None: what its KV would). One that `carries` "none"
    says so, and is no better: other draws and another prompt's end count in what it continues.
    """

    prefill_tokens_per_s: float = 0.0
    decode_s: float = 0.0
    eos_after: int | None = None
    eos_probability: float = 0.0
    stall_after_steps: int | None = None
    digest: str | None = None
    load_s: float = 0.0
    kv_layout: str = "fake"
    device_bytes: int | None = None
    carries: Literal["all", "none"] = "all"

    @property
    def declaration(self) -> Carries:
        """What it declares; KV it can ship either way."""
        return CARRIES_ALL if self.carries == "all" else Carries(seed=False, penalties=False, grammar=False)


def fake_info(
    name: ModelName,
    slots: int,
    context_tokens: int,
    options: FakeOptions,
    *,
    is_loaded: bool,
    path: Path | None = None,
) -> ModelInfo:
    """What a worker announces for a fake model. Any file can be its checkpoint, whose digest it then has.

    Without one the digest stands for the name, and there is nothing to fetch or to read.
    """
    if path is not None and not path.is_file():
        raise ModelLoadError(f"there is no model file {path}")
    content = hashlib.sha256(f"fake:{name}".encode()).hexdigest() if path is None else digest(path)
    info = ModelInfo(
        name=name,
        digest=options.digest or content,
        context_tokens=context_tokens,
        device_bytes=options.device_bytes or slots * context_tokens * _KV_BYTES_PER_TOKEN,
        is_loaded=is_loaded,
        has_chat_template=True,
        checkpoint_bytes=0 if path is None else path.stat().st_size,
        tier=Tier.DRAM if path is None else Tier.SSD,
    )
    return declaring(info, options.declaration)


@dataclass(slots=True)
class _Slot:
    """The running hashes over computed tokens stand in for the KV; `num_output` counts accepted output."""

    sampling: Sampling
    salt: int
    num_output: int
    hashes: list[int] = field(default_factory=list)
    last: TokenId = -1

    @property
    def num_computed(self) -> int:
        return len(self.hashes)

    @property
    def hash(self) -> int:
        return self.hashes[-1] if self.hashes else 0


class FakeRunner:
    """A Runner whose KV is a running hash; any of its methods is exact and cheap."""

    def __init__(self, info: ModelInfo, slots: int, options: FakeOptions) -> None:
        self._info = info
        self._slots = slots
        self._options = options
        self._state: dict[int, _Slot] = {}
        self._num_passes = 0
        self._closing = threading.Event()

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def slots(self) -> int:
        return self._slots

    def forward(self, spans: Sequence[Span]) -> None:
        if self._num_passes == self._options.stall_after_steps:
            self._closing.wait()
        self._num_passes += 1
        for span in spans:
            state = self._state[span.slot]
            if span.start != state.num_computed:
                raise InvariantBrokenError(
                    f"slot {span.slot} has {state.num_computed} tokens, not {span.start}"
                )
            for token in span.ids:
                state.hashes.append(_mix(state.hash ^ (token + 1)))
            state.last = span.ids[-1]
        self._wait(spans)

    def _wait(self, spans: Sequence[Span]) -> None:
        num_prefill = sum(len(span.ids) for span in spans if len(span.ids) > 1)
        wait_s = self._options.decode_s if any(len(span.ids) == 1 for span in spans) else 0.0
        if self._options.prefill_tokens_per_s > 0:
            wait_s += num_prefill / self._options.prefill_tokens_per_s
        if wait_s > 0:
            self._closing.wait(wait_s)

    def open(self, slot: int, sequence: SequenceSpec) -> None:
        self._state[slot] = _Slot(
            sequence.sampling, _salt(sequence, self._options.declaration), len(sequence.output_ids)
        )

    def accept(self, slot: int, ids: Sequence[TokenId]) -> None:
        self._state[slot].num_output += len(ids)

    def draw(self, slot: int) -> Token | None:
        state = self._state[slot]
        chance = _mix(state.hash ^ state.salt)
        if self._draws_end(state, chance):
            return None
        state.num_output += 1
        chosen = _choose(state.last, chance)
        return Token(chosen, _piece(chosen), _alternatives(chosen, chance, state.sampling.num_logprobs))

    def _draws_end(self, state: _Slot, chance: int) -> bool:
        if (
            state.sampling.ignore_eos
            or state.num_output < state.sampling.min_tokens
            or state.last in _LEAD_IDS
        ):
            return False
        after = self._options.eos_after
        if after is not None and state.num_output >= after:
            return True
        return (_mix(chance + 1) >> 11) * 2.0**-53 < self._options.eos_probability

    @property
    def kv_layout(self) -> str | None:
        return self._options.kv_layout or None

    def export_kv(self, slot: int, kv: KvRange) -> bytearray:
        """The hash before the range, which shows what it may be appended to, and those of its tokens."""
        hashes = [0, *self._state[slot].hashes][kv.first : kv.last + 1]
        copies = _KV_BYTES_PER_TOKEN // _HASH_BYTES
        return bytearray(b"".join(one.to_bytes(_HASH_BYTES) * copies for one in hashes))

    def import_kv(self, slot: int, kv: KvRange, data: bytearray) -> None:
        state = self._state[slot]
        starts = range(0, len(data), _KV_BYTES_PER_TOKEN)
        before, *hashes = (int.from_bytes(data[at : at + _HASH_BYTES]) for at in starts)
        if (state.num_computed, state.hash, len(hashes)) != (kv.first, before, kv.last - kv.first):
            raise EngineError(f"this is not the KV of tokens {kv.first} to {kv.last} of this context")
        state.hashes += hashes

    def clear(self, slot: int) -> None:
        del self._state[slot]

    def interrupt(self) -> None:
        self._closing.set()

    def close(self) -> None:
        self._state.clear()

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:  # noqa: ARG002 -- there is no start token
        return list(text.encode())

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return "".join(f"{m.role}: {m.content}\n" for m in messages) + "assistant:"

    def piece(self, token: TokenId) -> bytes:
        return _piece(token)

    def try_out(self, sampling: Sampling) -> None:
        """Grammars are refused by `check`."""

    def check(self, sequence: SequenceSpec) -> None:
        check_common(sequence, num_vocab=NUM_VOCAB, context_tokens=self._info.context_tokens)
        for name in ("grammar", "json_schema"):
            if getattr(sequence.sampling, name) is not None:
                raise BadRequestError(f"the fake engine cannot follow a {name}", param=name)


def _mix(x: int) -> int:
    """splitmix64's finalizer: every input bit changes half of the output bits."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _salt(sequence: SequenceSpec, carries: Carries) -> int:
    """What beside the tokens decides a draw: the seed, and where the prompt ended.

    An engine that does not carry seeds has draws of its own, which begin anew with each opening; one that
    does not carry penalties takes the output so far for prompt.
    """
    sampling, num_output = sequence.sampling, len(sequence.output_ids)
    salt = _mix(sampling.seed & _MASK) if sampling.temperature > 0 else 0
    if salt and not carries.seed:
        salt = _mix(salt + num_output)
    if sampling.presence_penalty or sampling.frequency_penalty:
        salt ^= _mix(len(sequence.prompt_ids) + (0 if carries.penalties else num_output) + 1)
    for token, bias in sampling.logit_bias:
        salt ^= _mix(token * 1000 + int(bias * 10) & _MASK)
    return salt


def _choose(last: TokenId, chance: int) -> TokenId:
    if last in _LEAD_IDS:
        return 0x80 + chance % 0x40
    kind, pick = divmod(chance, _ONE_LEAD_IN)
    if pick == 0:
        return _LEAD_IDS[kind % len(_LEAD_IDS)]
    return _FIRST_WORD_ID + kind % (EOS_ID - _FIRST_WORD_ID)


def _alternatives(chosen: TokenId, chance: int, num: int | None) -> tuple[Alternative, ...]:
    """The chosen token as the most likely one, then made-up words, each half as likely as the one before."""
    if num is None:
        return ()
    ids = [chosen, chosen, *(_choose(-1, _mix(chance + i)) for i in range(2, num + 1))][: num + 1]
    ranks = [max(0, i - 1) for i in range(len(ids))]
    return tuple(
        Alternative(t, _piece(t), -0.6931471805599453 * (r + 1)) for t, r in zip(ids, ranks, strict=True)
    )


def _piece(token: TokenId) -> bytes:
    if token < _EMOJI_LEAD_ID:
        return bytes([token])
    if token == _EMOJI_LEAD_ID:
        return b"\xf0\x9f\x98"
    if token == EOS_ID:
        return b""
    rest, word = token - _FIRST_WORD_ID, " "
    for _ in range(3):
        rest, part = divmod(rest, len(_SYLLABLES))
        word += _SYLLABLES[part]
    return word.encode()

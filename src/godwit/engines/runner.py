"""What the batching loop needs from a library that computes: one pass over spans, and one draw a slot."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from godwit.ports import SequenceSpec
from godwit.types import ChatMessage, KvRange, ModelInfo, Sampling, Token, TokenId


class Span(NamedTuple):
    """Tokens of one slot to compute: `ids` take the positions from `start` on.

    With `keep_logits` the logits after the last id stay with the slot until its next pass or `clear`.
    """

    slot: int
    start: int
    ids: Sequence[TokenId]
    keep_logits: bool


class Runner(Protocol):
    """One loaded model with `slots` independent KV slots; all but `interrupt`, `check`, `piece`, `render`
    `tokenize` and `try_out` are called from the engine's thread only."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def slots(self) -> int: ...

    def forward(self, spans: Sequence[Span]) -> None:
        """Compute the KV of all spans in one pass; any error here ends the engine."""
        ...

    def open(self, slot: int, sequence: SequenceSpec) -> None:
        """Make the slot's sampler, advanced over the output so far; GodwitError where it cannot be made."""
        ...

    def accept(self, slot: int, ids: Sequence[TokenId]) -> None:
        """Advance the sampler over output tokens drawn elsewhere; GodwitError where they do not fit."""
        ...

    def draw(self, slot: int) -> Token | None:
        """Draw the next output token from the kept logits and accept it; None is the end of the sequence."""
        ...

    @property
    def kv_layout(self) -> str | None:
        """As `Engine.kv_layout`."""
        ...

    def export_kv(self, slot: int, kv: KvRange) -> bytearray:
        """A copy of the KV of a computed range; EngineError where it cannot be had."""
        ...

    def import_kv(self, slot: int, kv: KvRange, data: bytearray) -> None:
        """Append the KV of a range to a slot that has all before it; an EngineError leaves the slot as is."""
        ...

    def clear(self, slot: int) -> None:
        """Forget the slot's KV, logits and sampler."""
        ...

    def interrupt(self) -> None:
        """Let a `forward` that hangs return; called from any thread, before `close`."""
        ...

    def close(self) -> None:
        """Free the model; nothing may be called after it."""
        ...

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]: ...

    def render(self, messages: Sequence[ChatMessage]) -> str: ...

    def piece(self, token: TokenId) -> bytes: ...

    def check(self, sequence: SequenceSpec) -> None: ...

    def try_out(self, sampling: Sampling) -> None: ...

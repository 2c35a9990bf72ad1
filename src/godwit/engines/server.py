"""What `served.ServedEngine` needs from a server that speaks HTTP."""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from godwit.ports import SequenceSpec
from godwit.types import ChatMessage, ModelInfo, Token, TokenId


class Drawn(NamedTuple):
    """What a server sent in one go: tokens, and with the last of them why it ended ("stop" or "length")."""

    tokens: Sequence[Token]
    finish: str | None = None


class Server(Protocol):
    """One running server with one model; its coroutines run in the engine's loop and may be cancelled.

    They raise EngineError where the server refuses one request, and aiohttp's errors or TimeoutError where
    it does not answer. KV of fewer than `block_tokens` tokens is not kept: such a tail is computed by `draw`.
    """

    block_tokens: int

    @property
    def info(self) -> ModelInfo: ...

    @property
    def slots(self) -> int: ...

    @property
    def kv_layout(self) -> str | None:
        """As `Engine.kv_layout`."""
        ...

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]: ...

    def render(self, messages: Sequence[ChatMessage]) -> str: ...

    def piece(self, token: TokenId) -> bytes: ...

    def check(self, sequence: SequenceSpec) -> None: ...

    async def prefill(self, slot: int, ids: Sequence[TokenId]) -> None:
        """Have the server compute and keep the KV of `ids`."""
        ...

    def draw(self, slot: int, sequence: SequenceSpec) -> AsyncGenerator[Drawn, None]:
        """Outputs from the sequence's end on; closing the generator stops the server."""
        ...

    async def export_kv(self, slot: int, ids: Sequence[TokenId]) -> bytearray:
        """What another server of this layout needs to have the KV of `ids`."""
        ...

    async def import_kv(self, slot: int, ids: Sequence[TokenId], data: bytearray) -> None:
        """Take the KV of `ids`; EngineError where the server does not have it after that."""
        ...

    async def is_alive(self) -> bool:
        """Whether the server still answers, told within seconds."""
        ...

    async def close(self) -> None:
        """Let go of the server, and stop it if it is this worker's own."""
        ...

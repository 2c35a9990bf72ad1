"""What `served.ServedEngine` needs from a server that speaks HTTP."""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

import aiohttp

from godwit.ports import SequenceSpec
from godwit.types import ChatMessage, ModelInfo, RequestId, Token, TokenId

UNANSWERED = (aiohttp.ClientError, OSError, TimeoutError)
"""What is raised where a server does not answer."""


class Drawn(NamedTuple):
    """What a server sent in one go: tokens, and with the last of them why it ended ("stop" or "length")."""

    tokens: Sequence[Token]
    finish: str | None = None


class Seat(NamedTuple):
    """One stay of a request: the engine's slot for it, and a name that no other stay has."""

    slot: int
    name: RequestId


class Server(Protocol):
    """One running server with one model; its coroutines run in the engine's loop and may be cancelled.

    They raise EngineError where the server refuses one request, and UNANSWERED where it does not answer. KV
    of fewer than `block_tokens` tokens is not kept: such a tail is computed by `draw`.
    """

    block_tokens: int

    @property
    def info(self) -> ModelInfo: ...

    @property
    def slots(self) -> int: ...

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]: ...

    def render(self, messages: Sequence[ChatMessage]) -> str: ...

    def piece(self, token: TokenId) -> bytes: ...

    def check(self, sequence: SequenceSpec) -> None: ...

    async def prefill(self, seat: Seat, ids: Sequence[TokenId]) -> None:
        """Have the server compute and keep the KV of `ids`."""
        ...

    def draw(self, seat: Seat, sequence: SequenceSpec) -> AsyncGenerator[Drawn, None]:
        """Outputs from the sequence's end on; closing the generator stops the server."""
        ...

    async def is_alive(self) -> bool:
        """Whether the server still answers, told within seconds."""
        ...

    async def progress(self) -> object:
        """Something that changes whenever the server computes, a part of a prompt too, and only then."""
        ...

    async def close(self) -> None:
        """Let go of the server, and stop it if it is this worker's own."""
        ...


class KvShipping(Protocol):
    """How servers of one layout get each other's KV, on a way of their own; as whole contexts, not ranges.

    The coroutines raise as those of `Server` do.
    """

    @property
    def layout(self) -> str:
        """As `Engine.kv_layout`."""
        ...

    @property
    def bytes_per_token(self) -> int: ...

    async def export_kv(self, seat: Seat, ids: Sequence[TokenId]) -> bytearray:
        """What another server needs to get the KV of `ids`."""
        ...

    async def import_kv(self, seat: Seat, ids: Sequence[TokenId], data: bytearray) -> None:
        """Get the KV of `ids`; EngineError where `data` must not be used."""
        ...


def reason_of(error: BaseException) -> str:
    """What is said of an error that may have no text, such as a TimeoutError."""
    return str(error) or type(error).__name__

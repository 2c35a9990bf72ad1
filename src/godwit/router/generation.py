"""What the HTTP side needs of the request table, and what the table needs of an HTTP stream."""

from collections.abc import Sequence
from typing import Protocol

from godwit.errors import GodwitError
from godwit.types import Alternative, ModelInfo, ModelName, Prompt, RequestId, Sampling, TokenId


class Sink(Protocol):
    """Where one request's output goes; the table calls it from the event loop and never waits for it.

    Order: `accepted` once, any number of `tokens` with `flush` after one or several of them, then exactly
    one of `finished` and `failed` (which may also come first). Moves and failovers are invisible here.
    """

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """The prompt's token ids are known."""
        ...

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],
    ) -> None:
        """Outputs `first_index` and on, each index exactly once and in order; buffer them until `flush`."""
        ...

    def flush(self) -> None:
        """All that is pending now has been given: write it out."""
        ...

    def finished(self, reason: str) -> None:
        """The request ended: "stop" or "length"."""
        ...

    def failed(self, error: GodwitError) -> None:
        """The request cannot be completed."""
        ...


class Generations(Protocol):
    """The request table, as the HTTP side sees it."""

    def start(
        self, request: RequestId, model: ModelName, prompt: Prompt, sampling: Sampling, sink: Sink
    ) -> None:
        """Queue one request; ModelNotFoundError, OverloadedError or UnavailableError where it cannot."""
        ...

    def cancel(self, request: RequestId) -> None:
        """Forget a request wherever it runs and free its slots at once; unknown ids are ignored.

        The sink hears nothing more. Used when the client leaves and when a stop string has matched.
        """
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The models that can be asked for now, one entry a name."""
        ...

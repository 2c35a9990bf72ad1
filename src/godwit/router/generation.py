"""What the HTTP side needs of the request table."""

from collections.abc import Sequence
from typing import Protocol

from godwit.ports import Sink
from godwit.types import ModelInfo, ModelName, Prompt, RequestId, Sampling

__all__ = ["Generations", "Sink"]


class Generations(Protocol):
    """The request table, as the HTTP side sees it."""

    def start(
        self,
        request: RequestId,
        model: ModelName,
        prompt: Prompt,
        sampling: Sampling,
        sink: Sink,
        expected_tokens: int | None = None,
        *,
        has_seed: bool = True,
    ) -> None:
        """Queue one request; ModelNotFoundError, OverloadedError or UnavailableError where it cannot.

        `expected_tokens` is the client's guess of how long the output will be. `has_seed`: it named the seed.
        """
        ...

    def cancel(self, request: RequestId) -> None:
        """Forget a request wherever it runs and free its slots at once; unknown ids are ignored.

        The sink hears nothing more. Used when the client leaves and when a stop string has matched.
        """
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The models that can be asked for now, one entry a name."""
        ...

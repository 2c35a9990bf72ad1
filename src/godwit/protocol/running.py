"""One request as the worker that computes it knows it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from godwit.ports import Engine, SequenceSpec
from godwit.protocol.message import Message
from godwit.protocol.messages import KvPart, PeerMessage, TokenEvent
from godwit.types import Epoch, ModelName, RequestId, Sampling, Token, TokenId, WorkerId

SendHead = Callable[[Message], None]
SendPeer = Callable[[WorkerId, str | None, PeerMessage | KvPart], None]
IsDirect = Callable[[WorkerId], bool]
"""Whether this worker has a link of its own to another one, so that KV can go there."""


@dataclass(slots=True)
class Running:
    """A request with a slot here. `num_told` outputs are known to the head or on their way to it."""

    request: RequestId
    epoch: Epoch
    model: ModelName
    engine: Engine
    prompt_ids: tuple[TokenId, ...]
    sampling: Sampling
    output: list[Token] = field(default_factory=list)
    num_told: int = 0

    @property
    def sequence(self) -> RequestId:
        """The engine's name for it: late reports of an earlier epoch's sequence are not of this one."""
        return RequestId(f"{self.request}@{self.epoch}")

    @property
    def num_tokens(self) -> int:
        """Prompt and output together; all but the last have KV while it decodes."""
        return len(self.prompt_ids) + len(self.output)

    @property
    def ids(self) -> tuple[TokenId, ...]:
        """All tokens, prompt and output."""
        return (*self.prompt_ids, *(token.id for token in self.output))

    @property
    def spec(self) -> SequenceSpec:
        """All that an engine needs to go on."""
        return SequenceSpec(self.prompt_ids, tuple(token.id for token in self.output), self.sampling)

    def tell(self, finish: str | None) -> TokenEvent:
        """The event with all outputs that the head has not been told."""
        new = self.output[self.num_told :]
        event = TokenEvent(
            self.request,
            self.epoch,
            self.num_told,
            [token.id for token in new],
            [token.text for token in new],
            finish,
            tuple(token.alternatives for token in new) if self.sampling.num_logprobs is not None else (),
        )
        self.num_told = len(self.output)
        return event

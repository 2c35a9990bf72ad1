"""A client in virtual time: sends a request, maybe several times over, and remembers when it got what."""

from collections.abc import Callable, Sequence
from functools import partial

from godwit.errors import GodwitError
from godwit.sim.loop import Event, Loop
from godwit.sim.spec import Ask
from godwit.types import Alternative, Promise, RequestId, TokenId


class Receiver:
    """Implements `ports.Sink` for one replica."""

    def __init__(self, client: "AskingClient", request: RequestId) -> None:
        self.request = request
        self.num_tokens = 0
        self.is_over = False
        self._client = client

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """It has started."""

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],  # noqa: ARG002 -- part of the contract
        alternatives: Sequence[tuple[Alternative, ...]],  # noqa: ARG002 -- part of the contract
    ) -> None:
        assert first_index == self.num_tokens, f"{self.request}: {first_index} after {self.num_tokens}"
        self.num_tokens += len(ids)
        self._client.got_tokens()

    def approximate(self, broken: Sequence[Promise]) -> None:
        """Engines here carry everything."""

    def flush(self) -> None:
        """Nothing is written anywhere."""

    def finished(self, reason: str) -> None:  # noqa: ARG002 -- part of the contract
        # Another replica may have been whole in this very instant: then nobody needs this one any more.
        if not self.is_over:
            self.is_over = True
            self._client.got_all(self)

    def failed(self, error: GodwitError) -> None:
        if not self.is_over:
            self.is_over = True
            self._client.failed(error)


class AskingClient:
    """Asks once (`ask.num_replicas` times at once) and takes the first whole answer."""

    def __init__(
        self,
        ask: Ask,
        number: int,
        loop: Loop,
        cancel: Callable[[RequestId], None],
        on_over: Callable[["AskingClient"], None],
    ) -> None:
        self.ask = ask
        names = [f"r{number}" if not one else f"r{number}.{one}" for one in range(ask.num_replicas)]
        self.receivers = [Receiver(self, RequestId(name)) for name in names]
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.problem: str | None = None
        self.winner: RequestId | None = None
        self.timeout: Event | None = None
        self._loop = loop
        self._cancel = cancel
        self._on_over = on_over

    @property
    def num_tokens(self) -> int:
        """Tokens that it has, of the replica that is farthest."""
        return max(one.num_tokens for one in self.receivers)

    def got_tokens(self) -> None:
        """Some tokens are here."""
        if self.first_s is None:
            self.first_s = self._loop.now_s

    def got_all(self, receiver: Receiver) -> None:
        """One answer is whole: the others are not needed any more."""
        self.winner = receiver.request
        self.end_s = self._loop.now_s
        self._end(None)

    def failed(self, error: GodwitError) -> None:
        """One replica has failed; the request has when all have."""
        if all(one.is_over for one in self.receivers):
            self._end(f"{error.code}: {error.message}")

    def give_up(self) -> None:
        """It has waited for too long."""
        self._end("timeout")

    def _end(self, problem: str | None) -> None:
        self.problem = problem
        if self.timeout is not None:
            self.timeout.cancel()
        for one in self.receivers:
            if not one.is_over:
                one.is_over = True
                # Not from within the head's own call.
                self._loop.after(0.0, partial(self._cancel, one.request))
        self._on_over(self)

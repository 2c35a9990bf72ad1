"""A client in the world: what it was given must be what it would have got had nothing happened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from godwit.errors import GodwitError
from godwit.types import Alternative, Promise, RequestId, TokenId
from tests.protocol.engine import piece


@dataclass
class Client:
    """Implements `ports.Sink`; checks every call against the unmoved run and the promised order."""

    request: RequestId
    expected_ids: list[TokenId]
    expected_finish: str
    tell: Callable[[str], None]
    ids: list[TokenId] = field(default_factory=list)
    num_accepted: int = 0
    num_flushed: int = 0
    outcome: str | None = None
    error: GodwitError | None = None
    on_end: Callable[[], None] = lambda: None
    may_be_approximate: bool = False
    broken: list[tuple[Promise, ...]] = field(default_factory=list)

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        assert prompt_ids
        assert not self.ids and self.outcome is None and self.num_accepted == 0
        self.num_accepted += 1

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],
    ) -> None:
        assert self.outcome is None and self.num_accepted == 1
        assert first_index == len(self.ids), f"{self.request}: {first_index} after {len(self.ids)}"
        assert list(texts) == [piece(token) for token in ids] and not alternatives
        self.ids.extend(ids)
        assert self.ids == self.expected_ids[: len(self.ids)], f"{self.request} went another way"
        self.tell(f"tokens {first_index}..{len(self.ids) - 1}")

    def approximate(self, broken: Sequence[Promise]) -> None:
        assert self.may_be_approximate, f"{self.request} was not continued exactly: {broken}"
        self.broken.append(tuple(broken))

    def flush(self) -> None:
        self.num_flushed = len(self.ids)

    def finished(self, reason: str) -> None:
        assert self.outcome is None
        assert self.ids == self.expected_ids and reason == self.expected_finish
        assert self.num_flushed == len(self.ids)
        self._end("finished", f"finished: {reason}")

    def failed(self, error: GodwitError) -> None:
        assert self.outcome is None
        self.error = error
        self._end("failed", f"failed: {error.message}")

    def _end(self, outcome: str, line: str) -> None:
        self.outcome = outcome
        self.tell(line)
        self.on_end()

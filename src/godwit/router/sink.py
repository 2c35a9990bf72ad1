"""From the token events of one choice to the text and tokens that its HTTP exchange delivers."""

from collections import deque
from collections.abc import Callable, Sequence

from godwit.errors import GodwitError, InvariantBrokenError
from godwit.router.exchange import Exchange
from godwit.router.metrics import Durations
from godwit.router.shapes import Shown
from godwit.router.text import TextStream
from godwit.types import Alternative, Promise, TokenId


class TokenLog:
    """Holds each token back until all of its text can be shown, so that a client gets both together."""

    __slots__ = ("_num_shown", "_text", "_waiting")

    def __init__(self, text: TextStream) -> None:
        self._text = text
        self._num_shown = 0
        self._waiting: deque[tuple[int, Shown]] = deque()

    def feed(
        self,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],
    ) -> tuple[str, list[Shown]]:
        """Feed the text stream; what can be shown now. A completed stop string releases all tokens so far."""
        text = self._text
        parts = []
        for token, data, candidates in zip(ids, texts, alternatives, strict=True):
            offset = self._num_shown + text.num_held_chars
            shown = text.feed((data,))
            parts.append(shown)
            self._num_shown += len(shown)
            end = self._num_shown + text.num_held_chars + text.is_inside_char
            self._waiting.append((end, Shown(token, data, candidates, offset)))
            if text.is_stopped:
                return "".join(parts), self.finish()
        ready = []
        while self._waiting and self._waiting[0][0] <= self._num_shown:
            ready.append(self._waiting.popleft()[1])
        return "".join(parts), ready

    def finish(self) -> list[Shown]:
        """All tokens that were held back."""
        ready = [shown for _, shown in self._waiting]
        self._waiting.clear()
        return ready


class ChoiceSink:
    """The `Sink` of one choice; does nothing per token that can be done per flush.

    With `has_tokens`, each token is delivered along with the end of the text that it belongs to; all tokens
    that count are delivered in the end, those of a stop string too.
    """

    __slots__ = (
        "_alternatives",
        "_exchange",
        "_ids",
        "_index",
        "_is_done",
        "_itl",
        "_last_s",
        "_log",
        "_next_index",
        "_now",
        "_since_last",
        "_text",
        "_texts",
    )

    def __init__(
        self,
        index: int,
        exchange: Exchange,
        text: TextStream,
        *,
        has_tokens: bool,
        ttft: Durations,
        itl: Durations,
        now: Callable[[], float],
        arrived_s: float,
    ) -> None:
        self._index = index
        self._exchange = exchange
        self._text = text
        self._log = TokenLog(text) if has_tokens else None
        self._next_index = 0
        self._ids: list[TokenId] = []
        self._texts: list[bytes] = []
        self._alternatives: list[tuple[Alternative, ...]] = []
        self._since_last = ttft
        self._itl = itl
        self._now = now
        self._last_s = arrived_s
        self._is_done = False

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """See `Sink`."""
        self._exchange.accept(self._index, len(prompt_ids))

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],
    ) -> None:
        """See `Sink`."""
        if first_index != self._next_index:
            raise InvariantBrokenError(f"output {first_index} was given instead of {self._next_index}")
        self._next_index = first_index + len(ids)
        self._texts += texts
        if self._log is not None:
            self._ids += ids
            self._alternatives += alternatives or [()] * len(ids)

    def approximate(self, broken: Sequence[Promise]) -> None:
        """See `Sink`."""
        if not self._is_done:
            self._exchange.approximate(self._index, broken)

    def flush(self) -> None:
        """See `Sink`."""
        if self._is_done or not self._texts:
            return
        text, tokens = self._take()
        if self._text.is_stopped:
            self._exchange.stop(self._index)
            self._end(text, tokens, "stop")
        elif text or tokens:
            self._exchange.deliver(self._index, text, tokens)

    def finished(self, reason: str) -> None:
        """See `Sink`."""
        if self._is_done:
            return
        text, tokens = self._take()
        text += self._text.finish()
        if self._log is not None:
            tokens = [*tokens, *self._log.finish()]
        self._end(text, tokens, "stop" if self._text.is_stopped else reason)

    def failed(self, error: GodwitError) -> None:
        """See `Sink`."""
        if not self._is_done:
            self._is_done = True
            self._exchange.fail(self._index, error)

    def _take(self) -> tuple[str, Sequence[Shown]]:
        texts, self._texts = self._texts, []
        if texts:
            now_s = self._now()
            self._since_last.observe(now_s - self._last_s)
            self._since_last = self._itl
            self._last_s = now_s
        if self._log is None:
            return self._text.feed(texts), ()
        ids, self._ids = self._ids, []
        alternatives, self._alternatives = self._alternatives, []
        return self._log.feed(ids, texts, alternatives)

    def _end(self, text: str, tokens: Sequence[Shown], reason: str) -> None:
        self._is_done = True
        self._exchange.end(self._index, text, tokens, reason, self._text.num_tokens)

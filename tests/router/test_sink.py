"""Token events to deliveries: nothing lost, tokens with their text, one delivery a flush."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.errors import GodwitError, InvariantBrokenError
from godwit.router.exchange import Exchange
from godwit.router.metrics import Durations
from godwit.router.openai import plan_chat
from godwit.router.shapes import Shown
from godwit.router.sink import ChoiceSink
from godwit.router.text import TextStream

LOOP = asyncio.new_event_loop()
LOOP.close()  # Nothing waits here, so no loop needs to run.


class Recorder(Exchange):
    """An exchange that keeps what it is given."""

    def __init__(self, **fields: Any) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
        plan = plan_chat(json.dumps(body).encode(), "r", lambda: 0, 32)
        self.cancelled: list[str] = []
        super().__init__(plan, self.cancelled.append, LOOP)
        self.deliveries: list[tuple[str, list[Shown]]] = []
        self.reason = ""
        self.ttft, self.itl = Durations([1.0]), Durations([1.0])
        self.sink = ChoiceSink(
            0,
            self,
            TextStream(plan.stops, plan.choices[0].sampling.min_tokens),
            has_tokens=plan.has_token_ids,
            ttft=self.ttft,
            itl=self.itl,
            now=lambda: 0.0,
            arrived_s=0.0,
        )

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.deliveries)

    @property
    def tokens(self) -> list[Shown]:
        return [token for _, tokens in self.deliveries for token in tokens]

    def deliver(self, index: int, text: str, tokens: Sequence[Shown]) -> None:  # noqa: ARG002
        self.deliveries.append((text, list(tokens)))

    def _say_end(self, index: int, text: str, tokens: Sequence[Shown], reason: str, *, is_last: bool) -> None:
        assert is_last
        self.deliver(index, text, tokens)
        self.reason = reason

    def _say_error(self, error: GodwitError) -> None:
        self.reason = error.code


def give(sink: ChoiceSink, texts: Sequence[bytes], first: int = 0) -> None:
    ids = range(first, first + len(texts))
    sink.tokens(first, list(ids), texts, [])
    sink.flush()


def test_tokens_of_one_flush_are_one_delivery() -> None:
    recorder = Recorder()
    recorder.sink.tokens(0, [1, 2], [b"a", b"b"], [])
    recorder.sink.tokens(2, [3], [b"c"], [])
    recorder.sink.flush()
    recorder.sink.flush()
    assert recorder.deliveries == [("abc", [])]


def test_an_index_given_twice_or_left_out_is_a_broken_invariant() -> None:
    recorder = Recorder()
    give(recorder.sink, [b"a"])
    with pytest.raises(InvariantBrokenError):
        give(recorder.sink, [b"a"])
    with pytest.raises(InvariantBrokenError):
        give(recorder.sink, [b"c"], first=2)


def test_a_token_waits_for_its_text() -> None:
    recorder = Recorder(return_token_ids=True, stop="END")
    euro = "€".encode()
    texts = [b"a", euro[:1], euro[1:], b"EN", b"D!"]
    for i, text in enumerate(texts[:4]):
        give(recorder.sink, [text], first=i)
    assert [[t.id for t in tokens] for _, tokens in recorder.deliveries] == [[0], [1, 2]]
    give(recorder.sink, texts[4:], first=4)
    assert [t.id for t in recorder.tokens] == [0, 1, 2, 3, 4]
    assert [t.offset for t in recorder.tokens] == [0, 1, 1, 2, 4]
    assert recorder.text == "a€"


def test_a_stop_string_ends_the_request_and_frees_its_slot() -> None:
    recorder = Recorder(stop="b")
    give(recorder.sink, [b"a", b"b", b"c"])
    recorder.sink.finished("length")
    give(recorder.sink, [b"d"], first=3)
    assert (recorder.text, recorder.reason, recorder.cancelled) == ("a", "stop", ["r"])
    assert recorder.usage.completion_tokens == 2


def test_a_stop_string_in_the_last_tokens_makes_the_reason_stop() -> None:
    recorder = Recorder(stop="b")
    recorder.sink.tokens(0, [1, 2], [b"a", b"b"], [])
    recorder.sink.finished("length")
    assert (recorder.text, recorder.reason) == ("a", "stop")


def test_the_first_delivery_counts_as_ttft_and_the_others_as_itl() -> None:
    recorder = Recorder()
    for i in range(4):
        give(recorder.sink, [b"a"], first=i)
    assert count_of(recorder.ttft) == 1
    assert count_of(recorder.itl) == 3


def count_of(durations: Durations) -> float:
    return next(s.value for s in durations.family("x", "x").samples if s.name == "x_count")


@given(
    st.lists(st.binary(max_size=3), max_size=20),
    st.lists(st.text("ab\x00", min_size=1, max_size=3), max_size=3),
    st.integers(1, 4),
)
def test_asking_for_tokens_changes_nothing_else_and_none_is_lost(
    texts: list[bytes], stops: list[str], frame: int
) -> None:
    plain, detailed = Recorder(stop=stops), Recorder(stop=stops, return_token_ids=True)
    for recorder in (plain, detailed):
        for at in range(0, len(texts), frame):
            give(recorder.sink, texts[at : at + frame], first=at)
        recorder.sink.finished("length")
    assert detailed.text == plain.text
    assert detailed.reason == plain.reason
    assert detailed.usage == plain.usage
    assert [t.id for t in detailed.tokens] == list(range(detailed.usage.completion_tokens))

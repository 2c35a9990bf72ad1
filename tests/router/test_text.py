"""Bytes to text: any split into tokens gives what all bytes at once give."""

import codecs

from hypothesis import example, given
from hypothesis import strategies as st

from godwit.router.text import TextStream

# Few letters, so that stop strings match, nearly match and overlap; some longer than a byte.
LETTERS = "abé€😀\n"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4)


def reference(tokens: list[bytes], stops: list[str], min_tokens: int) -> tuple[str, bool, int]:
    """Text, whether a stop string matched, and the number of tokens that count, from all bytes at once."""
    whole = b"".join(tokens).decode("utf-8", "replace")
    num_chars = [0]
    for i in range(len(tokens)):
        data = b"".join(tokens[: i + 1])
        num_chars.append(len(codecs.getincrementaldecoder("utf-8")("replace").decode(data)))
    first_end = num_chars[min(min_tokens, len(tokens))] + 1
    matches = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(whole))
        if whole.startswith(stop, start) and start + len(stop) >= first_end
    ]
    if not matches or len(tokens) <= min_tokens:
        return whole, False, len(tokens)
    end, start = min(matches)
    num_tokens = next((i for i, n in enumerate(num_chars) if n >= end), len(tokens))
    return whole[:start], True, num_tokens


def stream(tokens: list[bytes], stops: list[str], min_tokens: int, frame: int) -> tuple[str, bool, int]:
    """The same from a text stream that is fed `frame` tokens at a time."""
    text = TextStream(stops, min_tokens)
    shown = []
    for at in range(0, len(tokens), frame):
        shown.append(text.feed(tokens[at : at + frame]))
        if text.is_stopped:
            break
    else:
        shown.append(text.finish())
    return "".join(shown), text.is_stopped, text.num_tokens


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at `cuts` (modulo its length); empty tokens occur too."""
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(
    st.one_of(st.text(LETTERS, max_size=30).map(str.encode), st.binary(max_size=20)),
    st.lists(st.integers(0, 1000), max_size=30),
    STOPS,
    st.integers(0, 5),
    st.integers(1, 4),
)
@example(b"othere", [1, 2, 3, 4, 5], ["other!"], 0, 1)
@example("€".encode(), [1, 2], ["€"], 0, 1)
@example("€".encode()[:2], [1], ["\ufffd"], 0, 1)
@example(b"abab", [1, 2, 3], ["ab"], 2, 1)
def test_any_split_gives_the_text_of_all_bytes_at_once(
    data: bytes, cuts: list[int], stops: list[str], min_tokens: int, frame: int
) -> None:
    tokens = split(data, cuts)
    assert stream(tokens, stops, min_tokens, frame) == reference(tokens, stops, min_tokens)


def test_a_character_split_over_tokens_is_shown_whole() -> None:
    first, second = "€".encode()[:1], "€".encode()[1:]
    text = TextStream()
    assert text.feed([b"5 ", first]) == "5 "
    assert text.is_inside_char
    assert text.feed([second]) == "€"


def test_bytes_that_never_become_a_character_are_replaced_at_the_end() -> None:
    text = TextStream()
    assert text.feed([b"a\xe2\x82"]) == "a"
    assert text.finish() == "\ufffd"


def test_text_that_may_start_a_stop_string_is_withheld_then_released() -> None:
    text = TextStream(["END"])
    assert text.feed([b"the E"]) == "the "
    assert text.feed([b"N"]) == ""
    assert text.feed([b"x"]) == "ENx"
    assert text.feed([b"EN"]) == ""
    assert text.finish() == "EN"


def test_the_stop_string_that_is_complete_first_wins() -> None:
    text = TextStream(["world", "o w"])
    assert text.feed([b"hello world"]) == "hell"
    assert text.is_stopped


def test_of_two_stop_strings_complete_at_once_the_longer_is_cut_off() -> None:
    text = TextStream(["b", "ab"])
    assert text.feed([b"xa"]) == "x"
    assert text.feed([b"b"]) == ""
    assert text.is_stopped


def test_tokens_after_the_stop_string_do_not_count() -> None:
    text = TextStream(["."])
    assert text.feed([b"a", b".", b"b", b"c"]) == "a"
    assert text.num_tokens == 2


def test_stop_strings_within_the_first_min_tokens_do_not_count() -> None:
    text = TextStream(["."], min_tokens=2)
    assert text.feed([b".", b".", b"x", b"."]) == "..x"
    assert text.num_tokens == 4

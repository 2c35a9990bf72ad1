"""From the bytes of tokens to the text that a client sees: whole characters, nothing past a stop string."""

from codecs import utf_8_decode
from collections.abc import Sequence


class TextStream:
    """The visible text of one request, fed token by token; the result is the same however tokens split it.

    Bytes become text as `bytes.decode("utf-8", "replace")` would make it of all of them at once; a character
    that is split over tokens is held. Text that might be the start of a stop string is withheld until it
    turns out to be one or not. Of several stop strings the one that is complete first ends the text, and of
    those complete at the same character the longest; it is cut off. Stop strings that are complete within
    the first `min_tokens` tokens do not count.
    """

    __slots__ = ("_held", "_min_tokens", "_rest", "_stops", "is_stopped", "num_tokens")

    def __init__(self, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._stops = tuple(stops)
        self._min_tokens = min_tokens
        self._rest = b""
        self._held = ""
        self.num_tokens = 0
        self.is_stopped = False

    @property
    def num_held_chars(self) -> int:
        """Whole characters that are withheld, since they may be the start of a stop string."""
        return len(self._held)

    @property
    def is_inside_char(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._rest)

    def feed(self, texts: Sequence[bytes]) -> str:
        """Take the bytes of the next tokens, give the text that can be shown now.

        Where a stop string is complete, `is_stopped` becomes true, and the tokens after the one that
        completed it are neither used nor counted in `num_tokens`.
        """
        if not self._stops:
            self.num_tokens += len(texts)
            data = b"".join(texts)
            if self._rest:
                data = self._rest + data
            text, used = utf_8_decode(data, "replace", False)
            self._rest = data[used:]
            return text
        shown = []
        for token_text in texts:
            if self.is_stopped:
                break
            self.num_tokens += 1
            data = self._rest + token_text
            text, used = utf_8_decode(data, "replace", False)
            self._rest = data[used:]
            shown.append(self._match(text))
        return "".join(shown)

    def finish(self) -> str:
        """The rest of the text, when no more tokens come; may still complete a stop string."""
        text = utf_8_decode(self._rest, "replace", True)[0]
        self._rest = b""
        if self._stops and not self.is_stopped:
            text = self._match(text)
        text += self._held
        self._held = ""
        return text

    def _match(self, new: str) -> str:
        window = self._held + new
        if self.num_tokens > self._min_tokens:
            # What ends within the withheld text was looked at before, or did not count.
            num_old = len(self._held)
            ends = []
            for stop in self._stops:
                start = window.find(stop, max(0, num_old + 1 - len(stop)))
                if start >= 0:
                    ends.append((start + len(stop), start))
            if ends:
                self.is_stopped = True
                self._held = ""
                self._rest = b""
                return window[: min(ends)[1]]
        num_shown = len(window) - self._num_to_withhold(window)
        self._held = window[num_shown:]
        return window[:num_shown]

    def _num_to_withhold(self, window: str) -> int:
        """Length of the longest end of `window` with which a stop string starts."""
        longest = 0
        for stop in self._stops:
            at = window.find(stop[0], max(0, len(window) - len(stop) + 1))
            while at >= 0 and not stop.startswith(window[at:]):
                at = window.find(stop[0], at + 1)
            if at >= 0:
                longest = max(longest, len(window) - at)
        return longest

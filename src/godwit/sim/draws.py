"""What a modelled engine draws, and what stands for its KV."""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

from godwit.types import KvRange, Sampling, Token, TokenId

NUM_VOCAB = 1000
KV_BYTES_PER_TOKEN = 100
_ONE_END_IN = 29


class Draws(Protocol):
    """Which token comes after others: a function of those and the request's sampling alone."""

    def token(self, tokens: Sequence[TokenId], num_prompt: int, sampling: Sampling) -> Token | None:
        """The next token, None for the end of the sequence."""
        ...

    def num_certain(self, num_output: int, sampling: Sampling) -> int:
        """How many tokens, at least, come before the end of the sequence; at least 0."""
        ...

    def kv(self, tokens: Sequence[TokenId], kv: KvRange) -> bytearray:
        """What stands for the KV of a range."""
        ...


def piece(token: TokenId) -> bytes:
    """The bytes of a token."""
    return f"<{token}>".encode()


class HashedDraws:
    """Each token is a hash of all before it, so that one lost or doubled token changes all that follow."""

    def token(self, tokens: Sequence[TokenId], num_prompt: int, sampling: Sampling) -> Token | None:  # noqa: ARG002 -- part of the contract
        text = f"{sampling.seed}:{','.join(map(str, tokens))}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        if number % _ONE_END_IN == 0 and not sampling.ignore_eos:
            return None
        token = number % NUM_VOCAB
        return Token(token, piece(token))

    def num_certain(self, num_output: int, sampling: Sampling) -> int:  # noqa: ARG002 -- part of the contract
        return 0

    def kv(self, tokens: Sequence[TokenId], kv: KvRange) -> bytearray:
        """A function of all tokens up to the range's end."""
        text = f"{kv.first}:{','.join(map(str, tokens[: kv.last]))}"
        num_bytes = (kv.last - kv.first) * KV_BYTES_PER_TOKEN
        return bytearray(hashlib.shake_128(text.encode()).digest(num_bytes))

    def unmoved_run(self, prompt_ids: Sequence[TokenId], sampling: Sampling) -> tuple[list[TokenId], str]:
        """Output and finish reason of a request that nothing happens to."""
        output: list[TokenId] = []
        while len(output) < sampling.max_tokens:
            drawn = self.token([*prompt_ids, *output], len(prompt_ids), sampling)
            if drawn is None:
                return output, "stop"
            output.append(drawn.id)
        return output, "length"


class PackedDraws(HashedDraws):
    """The same with a hash that is ten times as quick, for worlds of which there are thousands.

    A request that ignores the end of the sequence has no end before its last token, so that several of its
    tokens may be drawn at once. Those of another `checkpoint` draw something else.
    """

    def __init__(self, checkpoint: int = 0) -> None:
        self._checkpoint = checkpoint

    def token(self, tokens: Sequence[TokenId], num_prompt: int, sampling: Sampling) -> Token | None:  # noqa: ARG002 -- part of the contract
        packed = array("q", (self._checkpoint, sampling.seed, *tokens)).tobytes()
        number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest())
        if number % _ONE_END_IN == 0 and not sampling.ignore_eos:
            return None
        return _PACKED[number % NUM_VOCAB]

    def num_certain(self, num_output: int, sampling: Sampling) -> int:
        return max(0, sampling.max_tokens - num_output) if sampling.ignore_eos else 0

    def kv(self, tokens: Sequence[TokenId], kv: KvRange) -> bytearray:
        packed = array("q", (self._checkpoint, kv.first, *tokens[: kv.last])).tobytes()
        return bytearray(hashlib.shake_128(packed).digest((kv.last - kv.first) * KV_BYTES_PER_TOKEN))


_PACKED = tuple(Token(number, piece(number)) for number in range(NUM_VOCAB))
_COUNTED = tuple(Token(number, b"") for number in range(128))


class CountedDraws:
    """Tokens are numbers by their place, which takes no time.

    A request ends after `sampling.seed` tokens, so that its length is known to nobody but the engine.
    """

    def token(self, tokens: Sequence[TokenId], num_prompt: int, sampling: Sampling) -> Token | None:
        num_output = len(tokens) - num_prompt
        return None if num_output >= sampling.seed else _COUNTED[num_output % len(_COUNTED)]

    def num_certain(self, num_output: int, sampling: Sampling) -> int:
        return max(0, sampling.seed - num_output)

    def kv(self, tokens: Sequence[TokenId], kv: KvRange) -> bytearray:  # noqa: ARG002 -- part of the contract
        return bytearray(kv.last - kv.first)

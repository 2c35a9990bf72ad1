"""What is known of a request: its size, and what its continuation must keep."""

from msgspec import Struct
from msgspec.structs import replace

from godwit.types import CARRIES_ALL, Carries, Promise


class Ask(Struct, frozen=True, gc=False):
    """Prompt and output tokens so far, the client's guess of the whole output, and its limit.

    `num_prompt` is an estimate until a worker has tokenized a prompt of text (`is_counted`), None where
    nobody knows; the other two are None where the client gave none. The true length of the output is nowhere.
    `promises` is what a continuation must keep, and `drawn_by` what the engine carries that drew the output.
    `was_accepted`: a worker has had room for it.
    """

    num_prompt: int | None = None
    num_output: int = 0
    expected_tokens: int | None = None
    max_tokens: int | None = None
    promises: tuple[Promise, ...] = ()
    drawn_by: Carries = CARRIES_ALL
    is_counted: bool = False
    was_accepted: bool = False

    @property
    def context_tokens(self) -> int:
        """Prompt and output so far; an unknown prompt counts as empty."""
        return (self.num_prompt or 0) + self.num_output

    def with_tokens(self, num_tokens: int) -> "Ask":
        """The same once a worker has counted prompt and output."""
        return replace(self, num_prompt=num_tokens - self.num_output, is_counted=True, was_accepted=True)


NOTHING_KNOWN = Ask()

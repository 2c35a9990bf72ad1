"""OpenAI's response shapes: whole answers, and the JSON around the text of each streamed chunk."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from godwit.errors import GodwitError
from godwit.router.openai import Plan
from godwit.types import Alternative, Promise, TokenId

LOWEST_LOGPROB = -9999.0
APPROXIMATE = "approximate"

encode_json = msgspec.json.Encoder().encode


class Shown(Struct, frozen=True, gc=False):
    """One output token as the client sees it; it starts at character `offset` of the choice's text."""

    id: TokenId
    text: bytes
    alternatives: tuple[Alternative, ...]
    offset: int


class Usage(Struct, frozen=True):
    """Tokens of one HTTP request, over all choices; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Shape(Protocol):
    """How the answer to one HTTP request looks.

    A chunk is `head(index)`, the JSON string of its text, and `tail(…)`; each has exactly one choice.
    """

    def head(self, index: int) -> bytes:
        """The chunk up to its text."""
        ...

    def tail(
        self,
        tokens: Sequence[Shown] = (),
        finish_reason: str | None = None,
        broken: Sequence[Promise] = (),
    ) -> bytes:
        """The chunk after its text; the last one of a choice says what its continuations did not keep."""
        ...

    def opening(self, index: int) -> bytes | None:
        """A chunk that comes before all text of a choice, if there is one."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk of a stream that was asked for usage."""
        ...

    def whole(self, choices: Sequence[dict[str, Any]], usage: Usage, broken: Sequence[Promise] = ()) -> bytes:
        """The whole answer, not streamed; `broken` is what its continuations did not keep."""
        ...

    def choice(self, index: int, text: str, tokens: Sequence[Shown], finish_reason: str) -> dict[str, Any]:
        """One choice of a whole answer."""
        ...


class _BaseShape:
    """What both kinds of answer share."""

    object_name = ""
    chunk_name = ""

    def __init__(self, plan: Plan, base: str, created: int) -> None:
        self._plan = plan
        self._common: dict[str, Any] = {"id": base, "created": created, "model": plan.model}
        self._usage_suffix = b',"usage":null}' if plan.has_usage else b"}"

    def _start(self, index: int) -> bytes:
        fields = encode_json({**self._common, "object": self.chunk_name})
        return b'data: %b,"choices":[{"index":%d' % (fields[:-1], index)

    def tail(
        self,
        tokens: Sequence[Shown] = (),
        finish_reason: str | None = None,
        broken: Sequence[Promise] = (),
    ) -> bytes:
        logprobs = self._logprobs(tokens) if self._plan.has_logprobs and tokens else None
        parts = [b',"logprobs":', encode_json(logprobs)]
        if self._plan.has_token_ids:
            parts += [b',"token_ids":', encode_json([t.id for t in tokens])]
        parts += [b',"finish_reason":', encode_json(finish_reason), b"}]"]
        if broken:
            parts += [b',"godwit":', encode_json(_approximate(broken))]
        return b"".join([*parts, self._usage_suffix, b"\n\n"])

    def usage_chunk(self, usage: Usage) -> bytes:
        body = {**self._common, "object": self.chunk_name, "choices": [], "usage": usage}
        return b"data: %b\n\n" % encode_json(body)

    def whole(self, choices: Sequence[dict[str, Any]], usage: Usage, broken: Sequence[Promise] = ()) -> bytes:
        body = {
            **self._common,
            "object": self.object_name,
            "system_fingerprint": None,
            "choices": choices,
            "usage": usage,
            **({"godwit": _approximate(broken)} if broken else {}),
        }
        return encode_json(body)

    def _choice(
        self, index: int, content: dict[str, Any], tokens: Sequence[Shown], finish_reason: str
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            **content,
            "logprobs": self._logprobs(tokens) if self._plan.has_logprobs else None,
            "finish_reason": finish_reason,
        }
        if self._plan.has_token_ids:
            choice["token_ids"] = [t.id for t in tokens]
        return choice

    def _logprobs(self, tokens: Sequence[Shown]) -> dict[str, Any]:
        raise NotImplementedError


def _approximate(broken: Sequence[Promise]) -> dict[str, Any]:
    return {"continuation": APPROXIMATE, "broken": broken}


class ChatShape(_BaseShape):
    """chat.completion and chat.completion.chunk."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def head(self, index: int) -> bytes:
        return self._start(index) + b',"delta":{"content":'

    def tail(
        self,
        tokens: Sequence[Shown] = (),
        finish_reason: str | None = None,
        broken: Sequence[Promise] = (),
    ) -> bytes:
        return b"}" + super().tail(tokens, finish_reason, broken)

    def opening(self, index: int) -> bytes | None:
        return self._start(index) + b',"delta":{"role":"assistant","content":""' + self.tail()

    def choice(self, index: int, text: str, tokens: Sequence[Shown], finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return self._choice(index, {"message": message}, tokens, finish_reason)

    def _logprobs(self, tokens: Sequence[Shown]) -> dict[str, Any]:
        content = []
        for token in tokens:
            best = _best(token.alternatives, self._plan.num_logprobs)
            chosen = token.alternatives[0].logprob if token.alternatives else LOWEST_LOGPROB
            content.append(
                _chat_logprob(token.text, chosen)
                | {"top_logprobs": [_chat_logprob(a.text, a.logprob) for a in best]}
            )
        return {"content": content, "refusal": None}


class CompletionShape(_BaseShape):
    """text_completion, whole and streamed."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def head(self, index: int) -> bytes:
        return self._start(index) + b',"text":'

    def opening(self, index: int) -> bytes | None:
        echo = self._plan.choices[index].echo
        return self.head(index) + encode_json(echo) + self.tail() if echo else None

    def choice(self, index: int, text: str, tokens: Sequence[Shown], finish_reason: str) -> dict[str, Any]:
        return self._choice(index, {"text": self._plan.choices[index].echo + text}, tokens, finish_reason)

    def _logprobs(self, tokens: Sequence[Shown]) -> dict[str, Any]:
        best = [_best(t.alternatives, self._plan.num_logprobs, keep_chosen=True) for t in tokens]
        chosen = [t.alternatives[0].logprob if t.alternatives else LOWEST_LOGPROB for t in tokens]
        return {
            "tokens": [_token_text(t.text) for t in tokens],
            "token_logprobs": [_finite(logprob) for logprob in chosen],
            "top_logprobs": [{_token_text(a.text): _finite(a.logprob) for a in b} for b in best],
            "text_offset": [t.offset for t in tokens],
        }


def make_shape(plan: Plan, base: str, created: int) -> ChatShape | CompletionShape:
    """The shape of the answer to `plan`, made at `created` (seconds since 1970)."""
    if plan.is_chat:
        return ChatShape(plan, f"chatcmpl-{base}", created)
    return CompletionShape(plan, f"cmpl-{base}", created)


def error_body(error: GodwitError, *, kind: str | None = None, code: str | None = None) -> bytes:
    """The error as OpenAI shapes it; `kind` and `code` override those of the error's class."""
    fields = {
        "message": error.message,
        "type": kind or error.kind,
        "param": error.param,
        "code": code or error.code,
    }
    return encode_json({"error": fields})


def _best(alternatives: Sequence[Alternative], num: int, *, keep_chosen: bool = False) -> list[Alternative]:
    """The `num` likeliest, best first; `keep_chosen` adds the chosen one, as text completions have it.

    The chosen token comes first in `alternatives`, and may or may not be repeated among those after it.
    """
    by_id = {a.id: a for a in reversed(alternatives)}
    best = sorted(by_id.values(), key=lambda a: -a.logprob)[:num]
    if keep_chosen and alternatives and all(a.id != alternatives[0].id for a in best):
        best.append(alternatives[0])
    return best


def _chat_logprob(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(text)}


def _finite(logprob: float) -> float:
    # JSON has no infinity; OpenAI documents this value for "very unlikely". NaN fails the comparison too.
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB


def _token_text(text: bytes) -> str:
    """The token as a key: part of a character keeps its bytes apart, as in OpenAI's text completions."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)

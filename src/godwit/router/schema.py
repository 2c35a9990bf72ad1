"""The bodies that clients may send, and the 400 that names what is wrong with one that is not."""

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from godwit.errors import BadRequestError

MAX_CHOICES_PER_PROMPT = 16
MAX_LOGPROBS = 20
MAX_INT32 = 2**31 - 1

Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
TokenNumber = Annotated[int, Meta(ge=0, le=MAX_INT32)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all bodies: an unknown field is an error, since ignoring it would answer another question."""


class TextFormat(Strict, frozen=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(Strict, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Strict, frozen=True):
    """A named JSON Schema; its text is kept as sent, since the order of properties matters."""

    name: str
    schema: Raw = Raw(b"{}")
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Strict, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StreamOptions(Strict, frozen=True):
    """What a stream holds besides text."""

    include_usage: bool = False


class TextPart(Strict, frozen=True):
    """A piece of a message; only text is supported."""

    text: str
    type: Literal["text"] = "text"


class Message(Strict, frozen=True):
    """One turn. The fields typed None are those that clients echo back as null from an earlier answer."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None


class Common(Strict, frozen=True, kw_only=True):
    """What chat and text completions share; null means the default, a field typed None is not supported."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES_PER_PROMPT)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: (
        Annotated[dict[TokenNumber, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None
    ) = None
    response_format: ResponseFormat | None = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    ignore_eos: bool | None = None
    expected_tokens: Count | None = None
    return_token_ids: bool | None = None
    # Accepted and without effect: they say nothing about the answer's content.
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ChatBody(Common, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    store: bool | None = None
    tools: None = None
    tool_choice: None = None
    parallel_tool_calls: None = None
    functions: None = None
    function_call: None = None
    modalities: None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None


class CompletionBody(Common, frozen=True, kw_only=True):
    """The body of POST /v1/completions; `prompt` is one text, texts, one list of ids, or lists of ids."""

    prompt: str | list[str | TokenNumber | list[TokenNumber]]
    echo: bool | None = None
    logprobs: NumLogprobs | None = None
    best_of: Count | None = None
    suffix: None = None


Body = TypeVar("Body", ChatBody, CompletionBody)

_chat_decoder = msgspec.json.Decoder(ChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)


def decode_chat(raw: bytes) -> ChatBody:
    """The chat body in `raw`; BadRequestError naming the parameter that is wrong."""
    return _decode(_chat_decoder, raw)


def decode_completion(raw: bytes) -> CompletionBody:
    """The text completion body in `raw`; BadRequestError naming the parameter that is wrong."""
    return _decode(_completion_decoder, raw)


def _decode(decoder: msgspec.json.Decoder[Body], raw: bytes) -> Body:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as e:
        raise _bad_parameter(str(e)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise BadRequestError(f"The body is not valid JSON: {e}. Send one JSON object in UTF-8.") from None
    except RecursionError:
        raise BadRequestError("The body is nested too deeply. Send a flatter JSON object.") from None


_FAULT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_KEY = re.compile(r"(.*) - at `key` in `\$\.?(.*)`", re.DOTALL)
_HINTS = {
    "role": "use system, developer, user or assistant",
    "content": "send text, or a list of text parts",
    "type": "only text content is supported; a response format is text, json_object or json_schema",
    "stop": "send one string or up to four, none of them empty",
    "prompt": "send a string, a list of strings, a list of token ids, or a list of lists of token ids",
}


def _bad_parameter(fault: str) -> BadRequestError:
    """Turn msgspec's "what - at `$.path`" into a message for the user and the parameter's name."""
    match = _FAULT.fullmatch(fault)
    what, path = (match["what"], match["path"] or "") if match else (fault, "")
    if field := _FIELD.fullmatch(what):
        param = f"{path}.{field[2]}" if path else field[2]
        if field[1].startswith("contains"):
            return BadRequestError(f"Unknown parameter `{param}`: leave it out.", param=param)
        return BadRequestError(f"The parameter `{param}` is missing.", param=param)
    if key := _KEY.fullmatch(what):
        what, path = f"a key is wrong: {key[1]}", path or key[2]
    if what.startswith("Expected `null`, got"):
        return BadRequestError(f"The parameter `{path}` is not supported: leave it out.", param=path)
    if not path:
        return BadRequestError(f"The body is not a request: {what}. Send one JSON object.")
    hint = _HINTS.get(re.split(r"[.\[]", path)[-1], _HINTS.get(re.split(r"[.\[]", path)[0], ""))
    return BadRequestError(f"`{path}`: {what}{'; ' + hint if hint else ''}.", param=path)

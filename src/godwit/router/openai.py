"""From an OpenAI request body to prompts and sampling: what each choice of the answer asks for."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from godwit.errors import BadRequestError
from godwit.router.schema import (
    MAX_INT32,
    ChatBody,
    Common,
    CompletionBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    decode_chat,
    decode_completion,
)
from godwit.types import (
    ChatMessage,
    ChatPrompt,
    ModelName,
    Prompt,
    RequestId,
    Sampling,
    TextPrompt,
    TokenPrompt,
)

DEFAULT_COMPLETION_TOKENS = 16


class ChoicePlan(Struct, frozen=True):
    """One choice of the answer: a request of its own. `echo` is the text to show before its output."""

    index: int
    request: RequestId
    prompt: Prompt
    prompt_index: int
    sampling: Sampling
    echo: str = ""


class Plan(Struct, frozen=True):
    """All that one HTTP request asks for; `expected_tokens` is a guess of how long each output will be.

    `has_seed`: the client named one.
    """

    model: ModelName
    is_chat: bool
    is_streamed: bool
    has_usage: bool
    has_token_ids: bool
    stops: tuple[str, ...]
    choices: tuple[ChoicePlan, ...]
    expected_tokens: int | None = None
    has_seed: bool = True

    @property
    def has_logprobs(self) -> bool:
        """Whether each token comes with its logprobs."""
        return self.choices[0].sampling.num_logprobs is not None

    @property
    def num_logprobs(self) -> int:
        """How many alternatives a token has at most."""
        return self.choices[0].sampling.num_logprobs or 0


def plan_chat(raw: bytes, base: str, new_seed: Callable[[], int], max_choices: int) -> Plan:
    """The plan for a chat body; see `_plan` for ids and seeds. BadRequestError names the parameter."""
    body = decode_chat(raw)
    if body.store:
        raise BadRequestError("`store` is not supported: leave it out or send false.", param="store")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise BadRequestError(
            "`max_tokens` and `max_completion_tokens` differ: send one of them.", param="max_tokens"
        )
    messages = tuple(
        ChatMessage(
            # Models know the older word only.
            role="system" if m.role == "developer" else m.role,
            content=m.content if isinstance(m.content, str) else "\n".join(p.text for p in m.content),
            name=m.name,
        )
        for m in body.messages
    )
    sampling = _sampling(
        body,
        max_tokens=limits.pop() if limits else None,
        default_max_tokens=MAX_INT32,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return _plan(body, [ChatPrompt(messages)], [""], sampling, base, new_seed, max_choices)


def plan_completion(raw: bytes, base: str, new_seed: Callable[[], int], max_choices: int) -> Plan:
    """The plan for a text completion body; BadRequestError names the parameter."""
    body = decode_completion(raw)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequestError("`best_of` other than `n` is not supported: leave it out.", param="best_of")
    prompts = _prompts(body)
    if body.echo:
        if body.logprobs is not None:
            raise BadRequestError(
                "`logprobs` with `echo` would need logprobs of the prompt, which are not computed: "
                "leave one of them out.",
                param="logprobs",
            )
        if isinstance(prompts[0], TokenPrompt):
            raise BadRequestError("`echo` needs a prompt of text: leave it out with token ids.", param="echo")
    echoes = [p.text if body.echo and isinstance(p, TextPrompt) else "" for p in prompts]
    sampling = _sampling(
        body,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        num_logprobs=body.logprobs,
    )
    return _plan(body, prompts, echoes, sampling, base, new_seed, max_choices)


def _prompts(body: CompletionBody) -> list[Prompt]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    texts = [p for p in prompt if isinstance(p, str)]
    ids = [p for p in prompt if isinstance(p, int)]
    lists = [p for p in prompt if isinstance(p, list)]
    if prompt and len(texts) == len(prompt):
        return [TextPrompt(t) for t in texts]
    if prompt and len(ids) == len(prompt):
        return [TokenPrompt(tuple(ids))]
    if prompt and len(lists) == len(prompt) and all(lists):
        return [TokenPrompt(tuple(x)) for x in lists]
    raise BadRequestError(
        "`prompt` is empty or mixes kinds: send a string, a list of strings, a list of token ids, "
        "or a list of lists of token ids.",
        param="prompt",
    )


def _sampling(
    body: Common, *, max_tokens: int | None, default_max_tokens: int, num_logprobs: int | None
) -> Sampling:
    """The sampling that all choices share; the seed is set for each choice."""
    max_tokens = default_max_tokens if max_tokens is None else max_tokens
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise BadRequestError(
            f"`min_tokens` is above the limit of {max_tokens} output tokens: lower it or raise `max_tokens`.",
            param="min_tokens",
        )
    top_k = 0 if body.top_k is None else max(body.top_k, 0)
    return Sampling(
        seed=0,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=top_k,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
        grammar=body.grammar,
        json_schema=_json_schema(body),
        num_logprobs=num_logprobs,
        ignore_eos=bool(body.ignore_eos),
    )


def _json_schema(body: Common) -> str | None:
    wanted = body.response_format
    schema = None
    if isinstance(wanted, JsonObjectFormat):
        schema = "{}"
    elif isinstance(wanted, JsonSchemaFormat):
        schema = bytes(wanted.json_schema.schema).decode().strip()
        if not schema.startswith("{"):
            raise BadRequestError(
                "`response_format.json_schema.schema` is not a JSON object: send a JSON Schema.",
                param="response_format.json_schema.schema",
            )
    if schema is not None and body.grammar is not None:
        raise BadRequestError("`grammar` and a JSON `response_format` exclude each other.", param="grammar")
    return schema


def _plan(
    body: Common,
    prompts: list[Prompt],
    echoes: list[str],
    sampling: Sampling,
    base: str,
    new_seed: Callable[[], int],
    max_choices: int,
) -> Plan:
    """Each of the n choices of each prompt is a request of its own.

    Its id is `base`, or `base`-`index` where there are several. Its seed is the client's (or a random one)
    plus its number among its prompt's choices: the first has the client's seed itself, and a prompt gives
    the same output alone as in a list.
    """
    n = body.n or 1
    num_choices = n * len(prompts)
    if num_choices > max_choices:
        raise BadRequestError(
            f"{len(prompts)} prompts with n = {n} are {num_choices} choices, at most {max_choices} are "
            "allowed: send fewer at a time.",
            param="n" if len(prompts) == 1 else "prompt",
        )
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("`stream_options` needs `stream` to be true.", param="stream_options")
    seed = new_seed() if body.seed is None else body.seed
    stop = body.stop or ()
    return Plan(
        model=ModelName(body.model),
        is_chat=isinstance(body, ChatBody),
        is_streamed=bool(body.stream),
        has_usage=body.stream_options is not None and body.stream_options.include_usage,
        has_token_ids=bool(body.return_token_ids),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        choices=tuple(
            ChoicePlan(
                index=index,
                request=RequestId(base if num_choices == 1 else f"{base}-{index}"),
                prompt=prompts[index // n],
                prompt_index=index // n,
                sampling=replace(sampling, seed=_wrapped(seed + index % n)),
                echo=echoes[index // n],
            )
            for index in range(num_choices)
        ),
        expected_tokens=body.expected_tokens,
        has_seed=body.seed is not None,
    )


def _wrapped(seed: int) -> int:
    """`seed` as a signed 64-bit integer."""
    return (seed + 2**63) % 2**64 - 2**63

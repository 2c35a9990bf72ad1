"""The checks of a sequence that are the same for every engine."""

from godwit.errors import BadRequestError, ConfigError, ContextTooLongError, InvariantBrokenError
from godwit.ports import SequenceSpec
from godwit.types import KvOffer, RequestId, Sampling

MAX_GRAMMAR_CHARS = 64 * 1024
MAX_LOGPROBS = 20


def check_common(sequence: SequenceSpec, *, num_vocab: int, context_tokens: int) -> None:
    """Raise BadRequestError or ContextTooLongError for what no engine with these sizes could serve."""
    for ids in (sequence.prompt_ids, sequence.output_ids):
        if ids and not (min(ids) >= 0 and max(ids) < num_vocab):
            raise BadRequestError(f"token ids must be from 0 to {num_vocab - 1}", param="prompt")
    if not sequence.prompt_ids:
        raise BadRequestError("the prompt has no tokens", param="prompt")
    num_tokens = len(sequence.prompt_ids) + len(sequence.output_ids)
    if num_tokens > context_tokens or len(sequence.prompt_ids) >= context_tokens:
        raise ContextTooLongError(
            f"the request has {num_tokens} tokens and the context is {context_tokens}: shorten the prompt",
            param="prompt",
        )
    _check_sampling(sequence.sampling, num_vocab)


def check_trained(model: str, context_tokens: int, trained_tokens: int | None) -> None:
    """ConfigError where the context is more than the model knows (None: it does not say)."""
    if trained_tokens is not None and context_tokens > trained_tokens:
        raise ConfigError(f"context_tokens of {model} must be at most {trained_tokens}, not {context_tokens}")


def check_awaited(request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None) -> None:
    """InvariantBrokenError where a sequence could not await this: the last token's pass makes the logits."""
    num_tokens = len(sequence.prompt_ids) + len(sequence.output_ids)
    if awaits is not None and not 0 <= awaits.kv.first < awaits.kv.last < num_tokens:
        raise InvariantBrokenError(f"{request} of {num_tokens} tokens cannot await {awaits.kv}")


def _check_sampling(sampling: Sampling, num_vocab: int) -> None:
    ranges = {
        "temperature": (sampling.temperature, 0.0, 100.0),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "presence_penalty": (sampling.presence_penalty, -100.0, 100.0),
        "frequency_penalty": (sampling.frequency_penalty, -100.0, 100.0),
        "repetition_penalty": (sampling.repetition_penalty, 1e-3, 100.0),
        "top_k": (sampling.top_k, 0, 2**31 - 1),
        "max_tokens": (sampling.max_tokens, 0, 2**31 - 1),
        "min_tokens": (sampling.min_tokens, 0, 2**31 - 1),
        "logprobs": (sampling.num_logprobs or 0, 0, MAX_LOGPROBS),
    }
    for name, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise BadRequestError(f"{name} must be from {low:g} to {high:g}, not {value:g}", param=name)
    for token, bias in sampling.logit_bias:
        if not (0 <= token < num_vocab and -100 <= bias <= 100):
            raise BadRequestError(
                f"logit_bias takes ids below {num_vocab} and values from -100 to 100, not {token}: {bias}",
                param="logit_bias",
            )
    for name, text in (("grammar", sampling.grammar), ("json_schema", sampling.json_schema)):
        if text is not None and len(text) > MAX_GRAMMAR_CHARS:
            raise BadRequestError(f"{name} is longer than {MAX_GRAMMAR_CHARS} characters", param=name)

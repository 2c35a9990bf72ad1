"""What a calibration measures on a given cluster, step by step, and what it cannot measure and why. Pure."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from msgspec import Struct

from godwit.client import ClusterStatus, WorkerStatus
from godwit.errors import ConfigError, UnavailableError

T = TypeVar("T")

WARM_UP_TOKENS = 8
DECODE_PROMPT_TOKENS = 16
MAX_BATCH = 32
MIN_CONTEXTS = 3
# Of a worker's context: the rest is for what the request draws while it is moved back and forth.
_MAX_SHARE, _MAX_DEFAULT_SHARE = 0.75, 0.5
_MAX_PREFILL_SHARE = 0.5


class Effort(Struct, frozen=True):
    """How much is measured. A trip is a move there and one back, for each context length, idle and loaded.

    `before_tokens` are drawn before each move whose effect on others is measured; `decode_steps` are timed
    for each batch size; `prefill_turns` times prompts of `prefill_tokens` are sent at once.
    """

    contexts: tuple[int, ...]
    kv_trips: int
    token_trips: int
    before_tokens: int
    decode_steps: int
    prefill_turns: int
    prefill_tokens: int


FULL = Effort((64, 128, 192, 256, 384, 512, 640, 832), 2, 1, 10, 32, 3, 128)
QUICK = Effort((32, 48, 64, 80, 96, 112, 128, 160), 1, 1, 8, 24, 2, 64)


class WarmUp(Struct, frozen=True):
    """Move a short request there and back both ways: loads the model, opens the link between the workers."""

    model: str
    first: str
    second: str
    max_tokens: int

    def __str__(self) -> str:
        return f"{self.model}: warming up {self.first} and {self.second}"


class MovesStep(Struct, frozen=True):
    """Move one request of so many prompt tokens back and forth, idle and (where there are slots) loaded."""

    model: str
    first: str
    second: str
    context_tokens: int
    max_tokens: int
    has_load: bool

    def __str__(self) -> str:
        return f"{self.model}: moves between {self.first} and {self.second}, {self.context_tokens} tokens"


class PromptStep(Struct, frozen=True):
    """Send one prompt and wait for its first token."""

    model: str
    context_tokens: int

    def __str__(self) -> str:
        return f"{self.model}: prefill of {self.context_tokens} tokens"


class DecodeStep(Struct, frozen=True):
    """Gather requests on one worker, up to the largest of `batches`, and time steps at each size."""

    model: str
    worker: str
    batches: tuple[int, ...]
    max_tokens: int

    def __str__(self) -> str:
        return f"{self.model}: decode on {self.worker}, {', '.join(map(str, self.batches))} requests at once"


class PrefillStep(Struct, frozen=True):
    """Send `batch` prompts for each of the cluster's workers at once, which the head spreads over them."""

    model: str
    batch: int
    num_prompts: int
    prompt_tokens: int

    def __str__(self) -> str:
        return f"{self.model}: prefill of {self.batch} prompts a worker at once"


Step = WarmUp | MovesStep | PromptStep | DecodeStep | PrefillStep


class Plan(Struct, frozen=True):
    """All steps in their order; `warnings` say what is left out and why."""

    steps: tuple[Step, ...]
    warnings: tuple[str, ...]


def make_plan(
    status: ClusterStatus,
    effort: Effort,
    *,
    models: Sequence[str] = (),
    workers: Sequence[str] = (),
    contexts: Sequence[int] = (),
) -> Plan:
    """What to measure: these models and workers (none: all), at these contexts (none: effort's).

    ConfigError where a name is not there or a context does not fit; UnavailableError without any worker.
    """
    up = [worker for worker in status.workers if not worker.draining]
    if not up:
        raise UnavailableError("no worker is connected; start one with `godwit worker --join URL`")
    chosen = _chosen("--workers", workers, {worker.name: worker for worker in up})
    served = {m.name: m for worker in chosen for m in worker.models}
    names = [model.name for model in _chosen("--model", models, served)]
    if not names:
        raise UnavailableError("the workers serve no model; start them with --model")
    steps: list[Step] = []
    warnings: list[str] = []
    for name in names:
        planner = _Planner(name, effort, contexts, warnings)
        steps += planner.steps([w for w in chosen if _limit(w, name)], [w for w in up if _limit(w, name)])
    return Plan(tuple(steps), tuple(warnings))


class _Planner:
    """Plans one model."""

    def __init__(self, model: str, effort: Effort, contexts: Sequence[int], warnings: list[str]) -> None:
        self._model = model
        self._effort = effort
        self._contexts = contexts
        self._warnings = warnings

    def steps(self, chosen: Sequence[WorkerStatus], everywhere: Sequence[WorkerStatus]) -> list[Step]:
        """Pairs first: they load the model on every worker."""
        model, steps = self._model, list[Step]()
        for first, second in combinations(chosen, 2):
            steps += self._pair(first, second)
        if len(chosen) == 1:
            self._warnings.append(
                f"{model}: {chosen[0].name} is the only worker that serves it, so there is nothing to move "
                "between: transfer and recompute overheads, bandwidths, KV sizes and slow-downs stay "
                "assumed; only its rates are measured"
            )
            lengths = self._lengths(_limit(chosen[0], model))
            steps += [
                PromptStep(model, length) for length in lengths for _ in range(self._effort.token_trips)
            ]
        for worker in chosen:
            room = _limit(worker, model) - DECODE_PROMPT_TOKENS
            steps.append(DecodeStep(model, worker.name, batch_sizes(worker.slots), room))
        limit = min(_limit(worker, model) for worker in everywhere)
        tokens = min(self._effort.prefill_tokens, int(limit * _MAX_PREFILL_SHARE))
        for batch in batch_sizes(min(worker.slots for worker in everywhere)):
            step = PrefillStep(model, batch, batch * len(everywhere), tokens)
            steps += [step] * self._effort.prefill_turns
        return steps

    def _pair(self, first: WorkerStatus, second: WorkerStatus) -> list[Step]:
        has_load = min(first.slots, second.slots) > 1
        if not has_load:
            self._warnings.append(
                f"{self._model}: {first.name} and {second.name} need 2 slots each for a request that moves "
                "and one that decodes beside it: rates under load and slow-downs at destinations are left out"
            )
        limit = min(_limit(first, self._model), _limit(second, self._model))
        ends = (self._model, first.name, second.name)
        moves = [
            MovesStep(*ends, length, limit - length, has_load) for length in sorted(self._lengths(limit))
        ]
        return [WarmUp(*ends, limit - WARM_UP_TOKENS), *moves]

    def _lengths(self, limit: int) -> list[int]:
        """The contexts asked for; else the usual ones, or where those do not fit as many shorter ones."""
        longest = int(limit * _MAX_SHARE)
        if self._contexts:
            if max(self._contexts) > longest:
                raise ConfigError(
                    f"--contexts: {max(self._contexts)} is too long for {self._model}, whose requests have "
                    f"{limit} tokens of prompt and output: at most {longest} leaves room for moving them"
                )
            return list(self._contexts)
        usual, top = self._effort.contexts, int(limit * _MAX_DEFAULT_SHARE)
        if usual[-1] <= top:
            return list(usual)
        return sorted({max(2, top * (i + 1) // len(usual)) for i in range(len(usual))})


def batch_sizes(slots: int) -> tuple[int, ...]:
    """The powers of two up to the slots, and the slots; not above `MAX_BATCH`."""
    most = min(slots, MAX_BATCH)
    powers = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    return tuple(sorted({*powers, most}))


def check_contexts(contexts: Sequence[int]) -> None:
    """ConfigError where a line could not be fitted through these."""
    if contexts and len(set(contexts)) < MIN_CONTEXTS:
        raise ConfigError(
            f"--contexts: at least {MIN_CONTEXTS} different ones, better 8, or an overhead cannot be told "
            "from a rate"
        )


def _limit(worker: WorkerStatus, model: str) -> int:
    """Tokens of prompt and output that a request of the model may have there; 0 where it is not served."""
    return next((one.context_tokens for one in worker.models if one.name == model), 0)


def _chosen(option: str, names: Sequence[str], known: Mapping[str, T]) -> list[T]:
    """What the names stand for, each once; all where there are none."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: {name!r} is not there; known: {', '.join(sorted(known)) or 'none'}")
    return [known[name] for name in dict.fromkeys(names or sorted(known))]

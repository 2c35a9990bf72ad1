"""What was measured, as plain data: the runs write it, the fits read it, tests make it up."""

from dataclasses import dataclass, field

from msgspec import Struct


class MoveSample(Struct, frozen=True, kw_only=True):
    """One real move, which took `ready_s` from the source's start until the destination had all KV.

    One by "kv" has `kv_tokens` and `kv_bytes`, one by "tokens" `computed_tokens`. `source_ratio` is how many
    times longer a token of the moving request took while the destination computed than before,
    `destination_ratio` the same for another request there; None where too few came.
    """

    model: str
    source: str
    destination: str
    is_loaded: bool
    kv_tokens: int = 0
    kv_bytes: int = 0
    computed_tokens: int = 0
    ready_s: float | None = None
    source_ratio: float | None = None
    destination_ratio: float | None = None

    @property
    def shipped(self) -> tuple[float, float] | None:
        """Bytes and seconds of a transfer, None where there was none."""
        if self.ready_s is None or not self.kv_bytes:
            return None
        return float(self.kv_bytes), self.ready_s

    @property
    def computed(self) -> tuple[float, float] | None:
        """Tokens and seconds of a recompute, None where there was none."""
        if self.ready_s is None or not self.computed_tokens:
            return None
        return float(self.computed_tokens), self.ready_s


class PromptSample(Struct, frozen=True):
    """A prompt that was sent alone: seconds from sending it to its first token."""

    model: str
    worker: str
    prompt_tokens: int
    first_token_s: float


class PrefillSample(Struct, frozen=True):
    """`batch` prompts that one worker got at once: all their tokens, seconds until the last one's first."""

    model: str
    worker: str
    batch: int
    prompt_tokens: int
    seconds: float


class DecodeSample(Struct, frozen=True):
    """The seconds of each decode step of a worker with `batch` requests; each step is a token for each."""

    model: str
    worker: str
    batch: int
    steps_s: tuple[float, ...]


@dataclass(slots=True)
class Measurements:
    """All of a calibration; `warnings` say what could not be measured and why."""

    moves: list[MoveSample] = field(default_factory=list)
    prompts: list[PromptSample] = field(default_factory=list)
    prefills: list[PrefillSample] = field(default_factory=list)
    decodes: list[DecodeSample] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[str]:
        """All models of which something was measured."""
        return sorted({s.model for s in self._on_one_worker} | {s.model for s in self.moves})

    @property
    def workers(self) -> list[str]:
        """All workers of which something was measured."""
        ends = {s.source for s in self.moves} | {s.destination for s in self.moves}
        return sorted({s.worker for s in self._on_one_worker} | ends)

    @property
    def _on_one_worker(self) -> list[PromptSample | PrefillSample | DecodeSample]:
        return [*self.prompts, *self.prefills, *self.decodes]

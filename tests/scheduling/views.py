"""Small clusters to ask policies about, with times that add up exactly."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from godwit.scheduling.view import ClusterView, ModelView, Running, WorkerView
from godwit.types import ModelInfo, ModelName, RequestId, Tier, WorkerId

LOAD_S = {Tier.DEVICE: 0.0, Tier.DRAM: 1.0, Tier.SSD: 8.0, Tier.REMOTE: 64.0}


@dataclass(frozen=True)
class FixedTimes:
    """Loads take what their tier says unless `loads` knows better; a token takes 1/8 s to make.

    A context takes 1/128 s a token to resume or to compute, or what `resumes` says of that worker and model,
    and so it is with `tokens`. Clients guess right.
    """

    loads: Mapping[tuple[WorkerId, ModelName], float] = field(default_factory=dict)
    resumes: Mapping[tuple[WorkerId, ModelName], float] = field(default_factory=dict)
    tokens: Mapping[tuple[WorkerId, ModelName], float] = field(default_factory=dict)

    def load_s(self, worker: WorkerId, info: ModelInfo) -> float:
        return 0.0 if info.is_loaded else self.loads.get((worker, info.name), LOAD_S[info.tier])

    def resume_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        return context_tokens * self.resumes.get((worker, model), 1 / 128)

    def prefill_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        return self.resume_s(worker, model, context_tokens)

    def remaining_tokens(
        self, model: ModelName, num_output: float, expected_tokens: int | None, max_tokens: int | None
    ) -> float:
        del model, max_tokens
        return max(1.0, (expected_tokens or 0) - num_output)

    def token_s(self, worker: WorkerId, model: ModelName) -> float:
        return self.tokens.get((worker, model), 1 / 8)


def info(
    name: str, num_bytes: int, *, loaded: bool = False, tier: Tier = Tier.SSD, digest: str = "1"
) -> ModelInfo:
    return ModelInfo(
        ModelName(name), digest, 4096, num_bytes, loaded, False, checkpoint_bytes=num_bytes, tier=tier
    )


def idle(name: str, num_bytes: int, tier: Tier = Tier.DRAM, **fields: object) -> ModelView:
    """A loaded model that nobody uses."""
    return replace(ModelView(info(name, num_bytes, loaded=True, tier=tier)), **fields)


def absent(name: str, num_bytes: int, tier: Tier = Tier.SSD, **fields: object) -> ModelView:
    """A model that is not on the device."""
    return replace(ModelView(info(name, num_bytes, tier=tier)), **fields)


def busy(name: str, num_bytes: int, tokens: Iterable[int] = (128,), **fields: object) -> ModelView:
    """A loaded model with one request for each count of tokens, as they are at 0 s."""
    running = tuple(
        Running(RequestId(f"{name}-{number}"), ModelName(name), WorkerId(""), count, 0.0)
        for number, count in enumerate(tokens)
    )
    return replace(idle(name, num_bytes), running=running, **fields)


def worker(name: str, device_bytes: int, *models: ModelView, slots: int = 4, **fields: object) -> WorkerView:
    view = WorkerView(WorkerId(name), 1, slots, device_bytes, {})
    for model in models:
        running = tuple(replace(one, worker=view.id) for one in model.running)
        view = view.with_model(replace(model, running=running))
    return replace(view, **fields)


def cluster(*workers: WorkerView, times: FixedTimes | None = None, draw: float = 0.0) -> ClusterView:
    holders: dict[ModelName, list[WorkerId]] = {}
    for one in workers:
        for name in one.models:
            holders.setdefault(name, []).append(one.id)
    return ClusterView({one.id: one for one in workers}, holders, times or FixedTimes(), draw=draw)


def changed(state: ModelView, **fields: object) -> ModelView:
    """A busy model whose first request differs."""
    return replace(state, running=(replace(state.running[0], **fields), *state.running[1:]))


A, B, C = ModelName("a"), ModelName("b"), ModelName("c")
W0, W1, W2, W3 = (WorkerId(f"w{number}") for number in range(4))
NOBODY: frozenset[WorkerId] = frozenset()

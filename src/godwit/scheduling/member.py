"""A connected worker, as the head knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from godwit.protocol.messages import Hello
from godwit.protocol.model_messages import LoadProgress
from godwit.types import CARRIES_ALL, Carries, ModelInfo, ModelName, WorkerId


@dataclass(slots=True)
class Member:
    """A connected worker: what it said of itself, its models now, loads under way and how far they are, and
    its drain if there is one."""

    hello: Hello
    models: dict[ModelName, ModelInfo]
    loading: set[ModelName] = field(default_factory=set)
    progress: dict[ModelName, LoadProgress] = field(default_factory=dict)
    is_draining: bool = False
    drain_deadline_s: float | None = None


def with_another(members: Mapping[WorkerId, Member], model: ModelName, digest: str) -> frozenset[WorkerId]:
    """Workers that have another checkpoint under the model's name: what has begun must not go on there."""
    infos = ((worker, member.models.get(model)) for worker, member in members.items())
    return frozenset(worker for worker, info in infos if info is not None and info.digest != digest)


def carries_of(members: Mapping[WorkerId, Member], worker: WorkerId, model: ModelName) -> Carries:
    """What the engine declares that serves a model there; everything, where it is gone."""
    member = members.get(worker)
    info = None if member is None else member.models.get(model)
    return CARRIES_ALL if info is None else info.carries

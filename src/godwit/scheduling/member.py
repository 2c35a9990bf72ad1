"""A connected worker, as the head knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from godwit.protocol.messages import Hello
from godwit.protocol.model_messages import LoadProgress
from godwit.types import CARRIES_ALL, Carries, ModelInfo, ModelName, WorkerId

MAX_LOST = 1000


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


class LostInDrain:
    """Drains of workers whose link was lost: one that is back, in the same life, goes on with its own."""

    def __init__(self) -> None:
        self._drains: dict[WorkerId, tuple[int, float | None]] = {}

    def is_gone(self, member: Member) -> None:
        """A worker's link is over."""
        if not member.is_draining:
            return
        self._drains[member.hello.worker] = (member.hello.incarnation, member.drain_deadline_s)
        if len(self._drains) > MAX_LOST:
            del self._drains[next(iter(self._drains))]  # Most of them have left as they should.

    def is_back(self, member: Member) -> None:
        """A worker has a link; it drains again if this life of it did."""
        incarnation, deadline_s = self._drains.pop(member.hello.worker, (None, None))
        if incarnation == member.hello.incarnation:
            member.is_draining, member.drain_deadline_s = True, deadline_s


def with_another(members: Mapping[WorkerId, Member], model: ModelName, digest: str) -> frozenset[WorkerId]:
    """Workers that have another checkpoint under the model's name: what has begun must not go on there."""
    infos = ((worker, member.models.get(model)) for worker, member in members.items())
    return frozenset(worker for worker, info in infos if info is not None and info.digest != digest)


def carries_of(members: Mapping[WorkerId, Member], worker: WorkerId, model: ModelName) -> Carries:
    """What the engine declares that serves a model there; everything, where it is gone."""
    member = members.get(worker)
    info = None if member is None else member.models.get(model)
    return CARRIES_ALL if info is None else info.carries

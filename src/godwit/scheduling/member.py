"""A connected worker, as the head knows it."""

from dataclasses import dataclass, field

from godwit.protocol.messages import Hello
from godwit.protocol.model_messages import LoadProgress
from godwit.types import ModelInfo, ModelName


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

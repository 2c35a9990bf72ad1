"""Which workers serve each model."""

from godwit.scheduling.view import Contexts
from godwit.types import ModelName, WorkerId


class Holders:
    """Workers by model, in the order in which they came. `contexts` is forgotten where that changes."""

    def __init__(self) -> None:
        self.of: dict[ModelName, dict[WorkerId, None]] = {}
        self.contexts: dict[ModelName, Contexts] = {}

    def add(self, worker: WorkerId, model: ModelName) -> None:
        """The worker serves the model, or serves it otherwise now."""
        self.of.setdefault(model, {})[worker] = None
        self.contexts.pop(model, None)

    def drop(self, worker: WorkerId, model: ModelName) -> None:
        """It does not any more; a model that nobody serves is no key."""
        self.contexts.pop(model, None)
        self.of[model].pop(worker, None)
        if not self.of[model]:
            del self.of[model]

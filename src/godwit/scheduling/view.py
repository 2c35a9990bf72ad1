"""What the scheduler knows of the cluster: immutable, replaced worker by worker, never changed in place."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from godwit.errors import InvariantBrokenError
from godwit.types import ModelInfo, ModelName, WorkerId


class ModelView(Struct, frozen=True):
    """One model on one worker.

    `num_reserved` slots are kept for requests that are moving there, `num_promised` for requests that wait
    for the model to be loaded.
    """

    info: ModelInfo
    num_running: int = 0
    num_reserved: int = 0
    num_promised: int = 0
    is_loading: bool = False

    @property
    def num_used(self) -> int:
        """Slots that nobody else can have."""
        return self.num_running + self.num_reserved + self.num_promised

    @property
    def holds_device(self) -> bool:
        """Whether the model takes device memory, now or in a moment."""
        return self.info.is_loaded or self.is_loading

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded for nobody: only such a one may be evicted."""
        return self.info.is_loaded and not self.is_loading and self.num_used == 0


class WorkerView(Struct, frozen=True):
    """One worker that is connected; `slots` is per loaded model, `device_bytes` its whole device memory."""

    id: WorkerId
    incarnation: int
    slots: int
    device_bytes: int
    models: Mapping[ModelName, ModelView]
    is_draining: bool = False

    @property
    def num_used(self) -> int:
        """Slots in use over all models."""
        return sum(model.num_used for model in self.models.values())

    @property
    def load(self) -> float:
        """Slots in use as a fraction of one model's slots, so that big and small workers compare."""
        return self.num_used / self.slots

    @property
    def free_bytes(self) -> int:
        """Device memory that no model holds."""
        held = sum(model.info.device_bytes for model in self.models.values() if model.holds_device)
        return self.device_bytes - held

    def with_model(self, model: ModelView) -> "WorkerView":
        """The worker with one model's view replaced; InvariantBrokenError where its slots do not add up."""
        counts = (model.num_running, model.num_reserved, model.num_promised)
        if min(counts) < 0 or sum(counts) > self.slots:
            raise InvariantBrokenError(
                f"slots of {model.info.name} on {self.id}: {counts[0]} running + {counts[1]} reserved + "
                f"{counts[2]} promised, of {self.slots}"
            )
        return replace(self, models={**self.models, model.info.name: model})


class ClusterView(Struct, frozen=True):
    """All connected workers at one moment."""

    workers: Mapping[WorkerId, WorkerView]

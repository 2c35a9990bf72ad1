"""Messages about models and their checkpoints, between head and worker."""

from godwit.config import ModelSettings
from godwit.protocol.message import Message
from godwit.types import LoadRecord, ModelInfo, ModelName, Tier

# --- worker to head ---------------------------------------------------------------------------------------

STAYS = LoadRecord(Tier.DEVICE, 0, 0.0, 0.0)
"""Tells the head that a model is loaded after all, which it could take for old news without a record."""


class ModelChanged(Message, frozen=True):
    """A model is new here, was loaded (`load` says how) or unloaded, its checkpoint has another tier, or
    (with `error`) it could not be loaded."""

    model: ModelInfo
    error: str | None = None
    load: LoadRecord | None = None


class LoadProgress(Message, frozen=True):
    """A load that is under way has moved `num_bytes` of `total_bytes` out of `tier`."""

    model: ModelName
    tier: Tier
    num_bytes: int
    total_bytes: int


class ModelRefused(Message, frozen=True):
    """The worker cannot add, or remove, a model as AddModel or RemoveModel asks."""

    model: ModelName
    reason: str


class ModelRemoved(Message, frozen=True):
    """The worker does not serve this model any more."""

    model: ModelName


# --- head to worker ---------------------------------------------------------------------------------------


class Load(Message, frozen=True):
    """Load a model; ModelChanged follows."""

    model: ModelName


class Unload(Message, frozen=True):
    """Unload a model as soon as it serves nothing; ModelChanged follows.

    What was released in the same instant still holds its slot until the engine's next token boundary, so the
    worker waits for that; a Load that comes after this one waits for the memory.
    """

    model: ModelName


class AddModel(Message, frozen=True):
    """Serve one more model from now on, not loaded; ModelChanged or ModelRefused follows."""

    model: ModelSettings


class RemoveModel(Message, frozen=True):
    """Forget a model that was added and is idle; ModelRemoved or ModelRefused follows."""

    model: ModelName


ModelReport = ModelChanged | LoadProgress | ModelRefused | ModelRemoved
ModelOrder = Load | Unload | AddModel | RemoveModel

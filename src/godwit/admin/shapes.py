"""What the admin API says and takes, for the head that answers and for the client that asks."""

from msgspec import Struct

from godwit.config import MoveMethod
from godwit.costs.sessions import LeavingEstimate
from godwit.costs.startup import EstimatesReport
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.explain import Explanation
from godwit.types import RequestId, Tier, WorkerId

EmulatedTiers = dict[str, dict[Tier, float]]
"""By worker, the bandwidths (bytes/s) of tiers that are slowed on purpose: times there are not real ones."""


class Progress(Struct, frozen=True):
    """A load under way has moved `num_bytes` of `total_bytes` out of `tier`."""

    tier: Tier
    num_bytes: int
    total_bytes: int


class ModelStatus(Struct, frozen=True):
    """One model on one worker: fields as in `godwit.types.ModelInfo`, and what goes on with it."""

    name: str
    is_loaded: bool = False
    context_tokens: int = 0
    digest: str = ""
    tier: Tier = Tier.SSD
    checkpoint_bytes: int = 0
    device_bytes: int = 0
    has_chat_template: bool = False
    is_loading: bool = False
    progress: Progress | None = None
    num_running: int = 0
    is_pinned: bool = False


class WorkerStatus(Struct, frozen=True):
    """One worker. Models hold `used_bytes` of its `device_bytes`; `dram_bytes` are for checkpoints."""

    name: str
    state: str
    slots: int
    used: int
    incarnation: int = 0
    models: tuple[ModelStatus, ...] = ()
    draining: bool = False
    emulated_bandwidth_bytes_per_s: float | None = None
    device_bytes: int = 0
    used_bytes: int = 0
    dram_bytes: int = 0
    emulated_tiers: dict[Tier, float] = {}


class MoveStatus(Struct, frozen=True):
    """A move in hand; `state` is that of the head's machine of section "Migration" in the docs."""

    move: str
    source: str
    destination: str
    state: str


class RequestStatus(Struct, frozen=True):
    """One request that waits or runs; `worker` is None while it waits."""

    id: str
    model: str
    worker: str | None
    state: str
    num_prompt: int = 0
    num_output: int = 0
    epoch: int = 0
    moves: int = 0
    move: MoveStatus | None = None


class ClusterStatus(Struct, frozen=True):
    """What the head knows now: workers by name, requests, and moves that are over, latest last."""

    workers: tuple[WorkerStatus, ...] = ()
    requests: tuple[RequestStatus, ...] = ()
    moves: tuple[MoveRecord, ...] = ()

    @property
    def emulated_tiers(self) -> EmulatedTiers:
        """Of the workers that emulate any."""
        return {worker.name: worker.emulated_tiers for worker in self.workers if worker.emulated_tiers}


class Place(Struct, frozen=True):
    """One model on one worker, as GET /admin/models shows it."""

    worker: str
    tier: Tier
    is_loaded: bool
    is_loading: bool
    num_running: int
    device_bytes: int
    checkpoint_bytes: int
    digest: str


class ModelListing(Struct, frozen=True):
    """One model and the workers that serve it; `is_added`: through the admin API, not in their settings."""

    name: str
    is_pinned: bool
    is_added: bool
    places: tuple[Place, ...] = ()


class Models(Struct, frozen=True):
    """Answer of GET /admin/models, by name."""

    models: tuple[ModelListing, ...] = ()
    emulated_tiers: EmulatedTiers = {}


class ModelAnswers(Struct, frozen=True):
    """Answer to adding or removing a model: None for each worker that did, else why it did not."""

    model: str
    workers: dict[str, str | None]


class Estimates(Struct, frozen=True):
    """Answer of GET /admin/estimates; `leaving` has the workers that are connected, by name."""

    estimates: EstimatesReport
    emulated_tiers: EmulatedTiers = {}
    leaving: tuple[LeavingEstimate, ...] = ()


class Explained(Struct, frozen=True):
    """Answer of GET /admin/explain."""

    explanation: Explanation
    emulated_tiers: EmulatedTiers = {}


class MigrateOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/migrate; `live` False stops the request before anything travels.

    `method` None is the configured one. `force`: also where the request could go on only approximately.
    """

    request: RequestId
    to: WorkerId | None = None
    live: bool = True
    method: MoveMethod | None = None
    force: bool = False


class DrainOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/drain."""

    worker: WorkerId
    deadline_s: float | None = None


class PinOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/models/{name}/pin."""

    pinned: bool

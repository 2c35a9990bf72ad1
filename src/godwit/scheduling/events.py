"""What the scheduler is told, and what it decides. Times are the caller's clock in seconds."""

from msgspec import Struct

from godwit.scheduling.ask import Ask
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, WorkerId

# --- events -----------------------------------------------------------------------------------------------


class RequestQueued(Struct, frozen=True):
    """A request needs a worker by `deadline`, and none of `exclude`; whatever it held before is free again.

    `has_started` says that its client has seen output: it goes before those that have not. One that
    `was_preempted` once never drives out others in its turn, and is not preempted again.
    """

    request: RequestId
    model: ModelName
    deadline: float
    exclude: frozenset[WorkerId] = frozenset()
    has_started: bool = False
    was_preempted: bool = False
    ask: Ask = Ask()


class Placed(Struct, frozen=True):
    """A request that has a slot of a model on some worker, and its tokens so far, prompt and output."""

    request: RequestId
    model: ModelName
    num_tokens: int = 0
    was_preempted: bool = False
    ask: Ask = Ask()


class WorkerJoined(Struct, frozen=True):
    """A worker connected (a new life of it replaces the former one).

    `running` and `incoming` are requests that run there and that are moving there, `loading` the models of
    which a load is under way: empty for a new process, what the head knows where it is the scheduler that is
    new.
    """

    worker: WorkerId
    incarnation: int
    slots: int
    device_bytes: int
    models: tuple[ModelInfo, ...]
    running: tuple[Placed, ...] = ()
    incoming: tuple[Placed, ...] = ()
    loading: tuple[ModelName, ...] = ()


class WorkerLeft(Struct, frozen=True):
    """A worker is gone or counts as gone; RequestQueued or MoveEnded follows for each request it had."""

    worker: WorkerId


class ModelChanged(Struct, frozen=True):
    """A worker loaded or unloaded a model or has it in another tier, or (with `error`) could not load it.

    `load` tells of the load that is over.
    """

    worker: WorkerId
    model: ModelInfo
    error: str | None = None
    load: LoadRecord | None = None


class ModelRemoved(Struct, frozen=True):
    """A worker does not serve a model any more."""

    worker: WorkerId
    model: ModelName


class ModelPinned(Struct, frozen=True):
    """From now on instances of a model are never evicted, or may be again."""

    model: ModelName
    is_pinned: bool


class RequestAccepted(Struct, frozen=True):
    """The worker of a Start has a slot for the request, which has `num_tokens` (prompt and output) so far."""

    request: RequestId
    num_tokens: int


class RequestEnded(Struct, frozen=True):
    """A request finished, failed or was cancelled."""

    request: RequestId


class PlacementFailed(Struct, frozen=True):
    """The worker of a Start had no room after all: place the request elsewhere.

    `is_too_long`: more tokens than the worker's context takes, which a longer one might.
    """

    request: RequestId
    worker: WorkerId
    reason: str
    is_too_long: bool = False


class MoveRequested(Struct, frozen=True):
    """Somebody wants a running request moved, to `destination` or (None) wherever the policy says.

    `is_forced`: also where it could go on only approximately.
    """

    request: RequestId
    destination: WorkerId | None
    reason: str
    is_forced: bool = False


class MoveEnded(Struct, frozen=True):
    """A move is over: the request is now on `worker`, or (None) it stayed where it was.

    It has `num_tokens` (prompt and output) by now.
    """

    request: RequestId
    worker: WorkerId | None
    num_tokens: int = 0


class DrainRequested(Struct, frozen=True):
    """A worker is to be emptied and to leave, with `deadline` by then at the latest."""

    worker: WorkerId
    deadline: float | None = None


class Tick(Struct, frozen=True):
    """Time has passed: send several a second; deadlines are as exact as these are frequent."""


class Batch(Struct, frozen=True):
    """Several things at once: nothing is decided before all of them are known.

    A new scheduler starts with one: RequestQueued, in order, for every request that no worker has accepted
    yet; then WorkerJoined for each worker with what has been placed there; then DrainRequested.
    """

    events: "tuple[Event, ...]"


Event = (
    Batch
    | WorkerJoined
    | WorkerLeft
    | ModelChanged
    | ModelRemoved
    | ModelPinned
    | RequestQueued
    | RequestAccepted
    | RequestEnded
    | PlacementFailed
    | MoveRequested
    | MoveEnded
    | DrainRequested
    | Tick
)

# --- decisions --------------------------------------------------------------------------------------------


class Start(Struct, frozen=True):
    """Submit the request to the worker; RequestEnded, PlacementFailed, or a move follows some day."""

    request: RequestId
    worker: WorkerId
    reason: str


class Load(Struct, frozen=True):
    """Have the worker load the model, which is expected to take `load_s` after `queue_s`; ModelChanged must
    follow."""

    worker: WorkerId
    model: ModelName
    reason: str
    queue_s: float = 0.0
    load_s: float = 0.0


class Unload(Struct, frozen=True):
    """Have the worker unload the model, before any later Load or Move there."""

    worker: WorkerId
    model: ModelName
    reason: str


class Move(Struct, frozen=True):
    """Move the request; the destination loads the model where it has not. MoveEnded must follow.

    With the load it is expected to take `load_s`, and `resume_s` until the destination has its KV.
    """

    request: RequestId
    source: WorkerId
    destination: WorkerId
    reason: str
    load_s: float = 0.0
    resume_s: float = 0.0


class Reject(Struct, frozen=True):
    """Fail the request with this error (see `godwit.errors.from_code`); the scheduler has forgotten it."""

    request: RequestId
    code: str
    message: str


class RefuseMove(Struct, frozen=True):
    """The move that was asked for does not happen."""

    request: RequestId
    code: str
    message: str


class Leave(Struct, frozen=True):
    """The worker is drained: tell it to leave."""

    worker: WorkerId


class Interrupt(Struct, frozen=True):
    """Take the request off its worker without waiting for a move, and end the move that it is on, if any:
    a drain's deadline has come, or (`is_preemption`) another model needs the device. RequestQueued must
    follow.
    """

    request: RequestId
    worker: WorkerId
    reason: str
    is_preemption: bool = False


Decision = Start | Load | Unload | Move | Reject | RefuseMove | Leave | Interrupt

"""Who holds which slot: the scheduler's books, and the invariant that they always balance."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from godwit.errors import InvariantBrokenError
from godwit.scheduling.events import WorkerJoined
from godwit.scheduling.policies import Choice, Step
from godwit.scheduling.view import ClusterView, ModelView, WorkerView
from godwit.types import ModelInfo, ModelName, RequestId, WorkerId


class Running(Struct, frozen=True):
    """A request that holds a slot on a worker."""

    model: ModelName
    worker: WorkerId


class Moving(Struct, frozen=True):
    """A move under way; `is_reserved` is False once the destination that kept the slot is gone."""

    model: ModelName
    destination: WorkerId
    is_loading: bool = False
    is_reserved: bool = True


class Ledger:
    """Workers, running requests and moves; a change that breaks 0 ≤ used ≤ slots raises."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, WorkerView] = {}
        self._running: dict[RequestId, Running] = {}
        self._moves: dict[RequestId, Moving] = {}
        self._promises: list[Running] = []

    @property
    def view(self) -> ClusterView:
        """The cluster as it is now; later changes do not show in it."""
        return ClusterView(dict(self._workers))

    @property
    def workers(self) -> Mapping[WorkerId, WorkerView]:
        """All connected workers."""
        return self._workers

    @property
    def running(self) -> Mapping[RequestId, Running]:
        """Requests that hold a slot, oldest first."""
        return self._running

    @property
    def moves(self) -> Mapping[RequestId, Moving]:
        """Moves under way, by request."""
        return self._moves

    def join(self, event: WorkerJoined) -> None:
        """Take a worker in, with the requests that it has already."""
        self.leave(event.worker)
        models = {info.name: ModelView(info) for info in event.models}
        self._workers[event.worker] = WorkerView(
            event.worker, event.incarnation, event.slots, event.device_bytes, models
        )
        for placed in event.running:
            self.start(placed.request, placed.model, event.worker)
        for placed in event.incoming:
            self._reserve(placed.request, Moving(placed.model, event.worker))

    def leave(self, worker: WorkerId) -> None:
        """Forget a worker and what ran there; a move to it stays open until its end is reported."""
        self._workers.pop(worker, None)
        self._promises = [promise for promise in self._promises if promise.worker != worker]
        for request in [request for request, place in self._running.items() if place.worker == worker]:
            del self._running[request]
        for request, move in self._moves.items():
            if move.destination == worker:
                self._moves[request] = replace(move, is_reserved=False)

    def start(self, request: RequestId, model: ModelName, worker: WorkerId) -> None:
        """Take a slot for a request that has none."""
        if request in self._running:
            raise InvariantBrokenError(f"{request} is started on {worker} but runs: {self._running[request]}")
        self._count(worker, model, num_running=1)
        self._running[request] = Running(model, worker)

    def end(self, request: RequestId) -> None:
        """Free all that a request holds, wherever it is."""
        self.end_move(request, None)
        place = self._running.pop(request, None)
        if place is not None:
            self._count(place.worker, place.model, num_running=-1)

    def begin_move(self, request: RequestId, choice: Choice) -> None:
        """Reserve the destination's slot, and its memory where it must load the model for this."""
        model = self._running[request].model
        if choice.step is Step.LOAD:
            self.set_loading(choice.worker, model, is_loading=True)
        self._reserve(request, Moving(model, choice.worker, is_loading=choice.step is Step.LOAD))

    def end_move(self, request: RequestId, worker: WorkerId | None) -> Moving | None:
        """Close a move: the request is on `worker`, or stayed (None). Gives the move, None where unknown."""
        move = self._moves.pop(request, None)
        if move is None:
            return None
        if move.is_reserved:
            self._count(move.destination, move.model, num_reserved=-1)
        if worker is None:
            if move.is_reserved and move.is_loading:
                self._stop_loading(move)
            return move
        if worker != move.destination:
            raise InvariantBrokenError(f"{request} moved to {worker} but was sent to {move.destination}")
        place = self._running.pop(request, None)
        if place is not None:
            self._count(place.worker, place.model, num_running=-1)
        if move.is_reserved:
            self.start(request, move.model, worker)
        return move

    def set_model(self, worker: WorkerId, info: ModelInfo, *, has_failed: bool) -> None:
        """Take over what a worker says about a model; a load goes on until it is done or has failed."""
        known = self._workers.get(worker)
        if known is None:
            return
        state = known.models.get(info.name, ModelView(info))
        is_loading = state.is_loading and not info.is_loaded and not has_failed
        self._workers[worker] = known.with_model(replace(state, info=info, is_loading=is_loading))

    def set_loading(self, worker: WorkerId, model: ModelName, *, is_loading: bool) -> None:
        """Book or give back the memory of a model that is being loaded."""
        known = self._workers[worker]
        booked = known.with_model(replace(known.models[model], is_loading=is_loading))
        if is_loading and booked.free_bytes < 0:
            raise InvariantBrokenError(
                f"{model} does not fit on {worker}: {-booked.free_bytes} bytes too many"
            )
        self._workers[worker] = booked

    def evict(self, worker: WorkerId, model: ModelName) -> None:
        """Count an idle model's memory as free: its Unload goes out before anything that needs the room."""
        known = self._workers[worker]
        state = known.models[model]
        if not state.is_idle:
            raise InvariantBrokenError(f"{model} on {worker} is to be unloaded but is not idle")
        self._workers[worker] = known.with_model(replace(state, info=replace(state.info, is_loaded=False)))

    def drain(self, worker: WorkerId) -> None:
        """Give the worker nothing new from here on."""
        self._workers[worker] = replace(self._workers[worker], is_draining=True)

    def promise(self, worker: WorkerId, model: ModelName) -> None:
        """Keep a slot of a loading model for a request that waits."""
        self._count(worker, model, num_promised=1)
        self._promises.append(Running(model, worker))

    def drop_promises(self) -> None:
        """Give all promised slots back; whoever still waits is promised one anew, in order."""
        for promise in self._promises:
            self._count(promise.worker, promise.model, num_promised=-1)
        self._promises = []

    def num_moves(self, worker: WorkerId) -> tuple[int, int]:
        """How many moves have the worker as source, and as destination."""
        out = sum(1 for request in self._moves if self._source(request) == worker)
        return out, sum(1 for move in self._moves.values() if move.destination == worker)

    def _source(self, request: RequestId) -> WorkerId | None:
        place = self._running.get(request)
        return None if place is None else place.worker

    def _stop_loading(self, over: Moving) -> None:
        """Give back the memory of a model that was loaded for a move, unless another move needs it too."""
        for request, move in self._moves.items():
            if (move.destination, move.model) == (over.destination, over.model) and move.is_reserved:
                self._moves[request] = replace(move, is_loading=True)
                return
        self.set_loading(over.destination, over.model, is_loading=False)

    def _reserve(self, request: RequestId, move: Moving) -> None:
        self._count(move.destination, move.model, num_reserved=1)
        self._moves[request] = move

    def _count(
        self,
        worker: WorkerId,
        model: ModelName,
        *,
        num_running: int = 0,
        num_reserved: int = 0,
        num_promised: int = 0,
    ) -> None:
        known = self._workers.get(worker)
        state = None if known is None else known.models.get(model)
        if known is None or state is None:
            raise InvariantBrokenError(f"a slot of {model} on {worker}, which does not have it")
        self._workers[worker] = known.with_model(
            replace(
                state,
                num_running=state.num_running + num_running,
                num_reserved=state.num_reserved + num_reserved,
                num_promised=state.num_promised + num_promised,
            )
        )

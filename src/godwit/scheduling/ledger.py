"""Who holds which slot and whose memory is whose: the scheduler's books, and that they always balance."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from godwit.errors import InvariantBrokenError
from godwit.scheduling.ask import NOTHING_KNOWN, Ask
from godwit.scheduling.bookings import Moving, Place, Saved, Stirred
from godwit.scheduling.events import Placed, WorkerJoined
from godwit.scheduling.holders import Holders
from godwit.scheduling.view import ClusterView, ModelView, Risks, Running, Times, WorkerView
from godwit.types import ModelInfo, ModelName, RequestId, WorkerId


class Ledger:
    """Workers, running requests, moves and claims.

    A booking that breaks 0 ≤ used ≤ slots, or held + claimed ≤ device memory, raises. `now` is the time of
    the event in hand.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._workers: dict[WorkerId, WorkerView] = {}
        self._holders = Holders()
        self._running: dict[RequestId, Running] = {}
        self._moves: dict[RequestId, Moving] = {}
        self._promises: dict[RequestId, Place] = {}
        self._claims: dict[WorkerId, dict[ModelName, frozenset[ModelName]]] = {}
        self._evicted: set[Place] = set()
        self._pinned: set[ModelName] = set()
        self.stirred = Stirred()

    # --- reading --------------------------------------------------------------------------------------------

    def view(
        self, times: Times, draw: float = 0.0, risks: Risks | None = None, ask: Ask = NOTHING_KNOWN
    ) -> ClusterView:
        """The cluster as it is now, to be read before the next change."""
        return ClusterView(
            self._workers, self._holders.of, times, self.now, draw, risks, ask, self._holders.contexts
        )

    def snapshot(self, times: Times, risks: Risks | None = None) -> ClusterView:
        """The same to keep: later changes do not show in it."""
        holders = {model: tuple(workers) for model, workers in self._holders.of.items()}
        return ClusterView(dict(self._workers), holders, times, self.now, risks=risks)

    @property
    def workers(self) -> Mapping[WorkerId, WorkerView]:
        """All connected workers."""
        return self._workers

    @property
    def holders(self) -> Mapping[ModelName, Mapping[WorkerId, None]]:
        """The workers that serve a model, by model; a model that nobody serves any more has none."""
        return self._holders.of

    @property
    def running(self) -> Mapping[RequestId, Running]:
        """Requests that hold a slot, oldest first."""
        return self._running

    @property
    def promises(self) -> Mapping[RequestId, Place]:
        """Slots that waiting requests will have once a load is over."""
        return self._promises

    @property
    def moves(self) -> Mapping[RequestId, Moving]:
        """Moves under way, by request."""
        return self._moves

    @property
    def claims(self) -> Mapping[WorkerId, Mapping[ModelName, frozenset[ModelName]]]:
        """Models that are to be loaded once the named ones have left that worker."""
        return self._claims

    def model(self, worker: WorkerId, model: ModelName) -> ModelView | None:
        """One model on one worker, None where it is not there."""
        known = self._workers.get(worker)
        return None if known is None else known.models.get(model)

    def is_coming(self, worker: WorkerId, model: ModelName) -> bool:
        """Whether the model is only claimed there: a move would ask for memory that is not free yet."""
        return model in self._claims.get(worker, ())

    def num_moves(self) -> tuple[Counter[WorkerId], Counter[WorkerId]]:
        """How many moves have each worker as source, and as destination; a look at all moves."""
        sources = (self._running[request].worker for request in self._moves if request in self._running)
        return Counter(sources), Counter(move.destination for move in self._moves.values())

    # --- workers and models ---------------------------------------------------------------------------------

    def join(self, event: WorkerJoined) -> None:
        """Take a worker in, with what it has already."""
        self.leave(event.worker)
        known = WorkerView(event.worker, event.incarnation, event.slots, event.device_bytes, {})
        for info in event.models:
            is_loading = info.name in event.loading and not info.is_loaded
            state = ModelView(
                info,
                is_loading=is_loading,
                is_pinned=info.name in self._pinned,
                ready_at_s=self.now,
                used_at_s=self.now,
            )
            known = known.with_model(state)
            self._holders.add(event.worker, info.name)
        self._workers[event.worker] = known
        self.stirred.ease(event.worker)
        for placed in event.running:
            self.start(placed, event.worker)
        for placed in event.incoming:
            self._reserve(placed.request, Moving(placed.model, event.worker, ask=placed.ask))

    def leave(self, worker: WorkerId) -> None:
        """Forget a worker and what ran there; a move to it stays open until its end is reported."""
        known = self._workers.pop(worker, None)
        for model in () if known is None else known.models:
            self._holders.drop(worker, model)
        for request, promise in list(self._promises.items()):
            if promise.worker == worker:
                del self._promises[request]
                self.stirred.stir(promise.model)
        self._claims.pop(worker, None)
        self._evicted = {place for place in self._evicted if place.worker != worker}
        for request in [request for request, place in self._running.items() if place.worker == worker]:
            del self._running[request]
        for request, move in self._moves.items():
            if move.destination == worker:
                self._moves[request] = replace(move, is_reserved=False)

    def drain(self, worker: WorkerId) -> None:
        """Give the worker nothing new from here on; what was promised there is not any more."""
        self._break_promises(worker)
        self._workers[worker] = replace(self._workers[worker], is_draining=True)

    def set_model(self, worker: WorkerId, info: ModelInfo, *, is_load_over: bool) -> None:
        """Take over what a worker says about a model.

        What it said before it heard of an eviction, or before a load that it was ordered, does not undo them:
        the latter is known by `is_load_over`, or by the model being loaded.
        """
        known = self._workers.get(worker)
        if known is None:
            return
        place = Place(worker, info.name)
        state = known.models.get(info.name) or ModelView(
            info, is_pinned=info.name in self._pinned, used_at_s=self.now
        )
        is_stale = place in self._evicted and info.is_loaded and not is_load_over
        if is_stale:
            info = replace(info, is_loaded=False)
        else:
            self._evicted.discard(place)
        is_loading = state.is_loading and not is_load_over and not info.is_loaded
        self._workers[worker] = known.with_model(replace(state, info=info, is_loading=is_loading))
        if worker in self._claims:
            self._count_claims(worker)
        if is_load_over or info.is_loaded != state.info.is_loaded or worker in self._claims:
            self.stirred.ease(worker)
        else:  # In another tier it may be loaded sooner, but no room has come of that.
            self.stirred.stir(info.name)
        if is_load_over and not info.is_loaded:
            self._break_promises(worker, info.name)
        self._holders.add(worker, info.name)

    def remove_model(self, worker: WorkerId, model: ModelName) -> None:
        """The worker does not serve a model any more, and what was promised of it is not any more either;
        InvariantBrokenError where it serves somebody."""
        self._break_promises(worker, model)
        known, state = self._workers.get(worker), self.model(worker, model)
        if known is None or state is None:
            return
        if state.num_used or state.is_coming:
            raise InvariantBrokenError(f"{model} is removed from {worker} but is in use")
        gone = known.with_model(replace(state, info=replace(state.info, is_loaded=False), is_loading=False))
        left = {name: other for name, other in gone.models.items() if name != model}
        self._workers[worker] = replace(gone, models=left)
        self._holders.drop(worker, model)

    def pin(self, model: ModelName, is_pinned: bool) -> None:
        """Let no instance of the model be evicted, or let them again."""
        (self._pinned.add if is_pinned else self._pinned.discard)(model)
        for worker in self._holders.of.get(model, ()):
            self._change(Place(worker, model), is_pinned=is_pinned)
            self.stirred.ease(worker)

    def load(self, worker: WorkerId, model: ModelName, ready_at_s: float) -> None:
        """Book the memory of a model that is to be loaded now."""
        self._change(Place(worker, model), is_loading=True, ready_at_s=ready_at_s, used_at_s=self.now)
        self._workers[worker].check_memory()

    def evict(self, worker: WorkerId, model: ModelName) -> None:
        """Count an idle model's memory as free: its Unload goes out before anything that needs the room."""
        state = self.model(worker, model)
        if state is None or not state.is_idle:
            raise InvariantBrokenError(f"{model} on {worker} is to be unloaded but is not idle")
        place = Place(worker, model)
        self._change(place, info=replace(state.info, is_loaded=False), is_leaving=False)
        self._evicted.add(place)
        self.stirred.ease(worker)

    # --- claims ---------------------------------------------------------------------------------------------

    def claim(self, place: Place, victims: Iterable[ModelName], ready_at_s: float) -> None:
        """Keep room for a model that is to be loaded when the victims have left: they take nothing new, and
        what they do not free of its memory is kept from the free memory now."""
        victims = frozenset(victims)
        free_bytes = self._workers[place.worker].free_bytes
        self._claims.setdefault(place.worker, {})[place.model] = victims
        self._change(place, is_coming=True, ready_at_s=ready_at_s)
        for victim in victims:
            self._change(Place(place.worker, victim), is_leaving=True)
        self._count_claims(place.worker)
        # A worker that has more loaded than it should takes nothing from the claim.
        self._workers[place.worker].check_memory(min(0, free_bytes))

    def evict_victim(self, place: Place, victim: ModelName) -> None:
        """A victim of a claim serves nothing: its memory becomes the claim's, and what is too much free.

        One that is gone already only ceases to be a victim.
        """
        if self._state(Place(place.worker, victim)).is_idle:
            self.evict(place.worker, victim)
        else:
            self._change(Place(place.worker, victim), is_leaving=False)
        self._claims[place.worker][place.model] -= {victim}
        self._count_claims(place.worker)

    def end_claim(self, place: Place) -> None:
        """Give a claim up, or over to the load that it was for; victims that are still there may stay."""
        for victim in self._claims[place.worker].pop(place.model):
            self._change(Place(place.worker, victim), is_leaving=False)
        self._change(place, is_coming=False)
        self._count_claims(place.worker)
        self.stirred.ease(place.worker)

    # --- requests -------------------------------------------------------------------------------------------

    def start(self, placed: Placed, worker: WorkerId) -> None:
        """Take a slot for a request that has none; with tokens it runs there already."""
        request, model, num_tokens = placed.request, placed.model, placed.num_tokens
        if request in self._running:
            raise InvariantBrokenError(f"{request} is started on {worker} but runs: {self._running[request]}")
        at_s = self.now if num_tokens else None
        stays_until_s = math.inf if placed.was_preempted else -math.inf
        is_moving = request in self._moves
        self._put(Running(request, model, worker, num_tokens, at_s, is_moving, stays_until_s, placed.ask))

    def accepted(self, request: RequestId, num_tokens: int) -> None:
        """A request runs from here on, with so many tokens."""
        if (place := self._running.get(request)) is not None:
            ask = place.ask.with_tokens(num_tokens)
            self._put(replace(place, num_tokens=num_tokens, at_s=self.now, ask=ask))

    def keep(self, request: RequestId, until_s: float) -> None:
        """Do not move or preempt a running request to make room before `until_s`."""
        if (place := self._running.get(request)) is not None:
            self._put(replace(place, stays_until_s=until_s))

    def end(self, request: RequestId) -> None:
        """Free all that a request holds, wherever it is."""
        self.end_move(request, None)
        self._take_away(request)

    def begin_move(self, request: RequestId, destination: WorkerId) -> None:
        """Reserve the destination's slot."""
        place = self._running[request]
        self._reserve(request, Moving(place.model, destination, ask=place.ask))

    def end_move(self, request: RequestId, worker: WorkerId | None, num_tokens: int = 0) -> Moving | None:
        """Close a move: the request is on `worker`, or stayed (None). Gives the move, None where unknown.

        That it is where it runs anyway is the late end of an earlier move, which a scheduler that is new had
        not heard of.
        """
        move, place = self._moves.get(request), self._running.get(request)
        if move is None or (worker is not None and place is not None and place.worker == worker):
            return None
        del self._moves[request]
        if move.is_reserved:
            self._count(Place(move.destination, move.model), num_reserved=-1)
            self.stirred.ease(move.destination)
        if worker is None:
            if place is not None:
                self._put(replace(place, is_moving=False))
            return move
        if worker != move.destination:
            raise InvariantBrokenError(f"{request} moved to {worker} but was sent to {move.destination}")
        was_preempted = place is not None and place.stays_until_s == math.inf
        self._take_away(request)
        if move.is_reserved:
            self.start(Placed(request, move.model, num_tokens, was_preempted, move.ask), worker)
        return move

    def promise(self, request: RequestId, worker: WorkerId, model: ModelName) -> None:
        """Keep a slot of a model that is loading or coming for a request that waits."""
        self._count(Place(worker, model), num_promised=1)
        self._promises[request] = Place(worker, model)

    def release(self, request: RequestId) -> None:
        """Give a promised slot back, if there is one."""
        if (promise := self.suspend(request)) is not None:
            self.stirred.ease(promise.worker)

    def suspend(self, request: RequestId) -> Place | None:
        """Give a promised slot back for a moment, to be promised anew or `resume`d; None: there was none."""
        if (promise := self._promises.pop(request, None)) is not None:
            self._count(promise, num_promised=-1)
        return promise

    def resume(self, request: RequestId, promise: Place) -> None:
        """The moment is over: what was not promised anew is free for others."""
        if self._promises.get(request) != promise:
            self.stirred.ease(promise.worker)

    # --- bookings that come to nothing ----------------------------------------------------------------------

    def save(self) -> Saved:
        """The books as they are, cheap since values never change in place."""
        return Saved(
            dict(self._workers),
            dict(self._running),
            dict(self._moves),
            dict(self._promises),
            {worker: dict(claims) for worker, claims in self._claims.items()},
            set(self._evicted),
        )

    def restore(self, saved: Saved) -> None:
        """Undo all bookings of requests, moves, claims and memory since; no worker has come or gone since."""
        self._workers, self._running, self._moves, self._promises = saved[:4]
        self._claims, self._evicted = saved[4:]

    # --- inside ---------------------------------------------------------------------------------------------

    def _put(self, place: Running) -> None:
        """Add a running request, or replace what is known of it."""
        state = self._state(Place(place.worker, place.model))
        others = tuple(one for one in state.running if one.request != place.request)
        self._change(Place(place.worker, place.model), running=(*others, place), used_at_s=self.now)
        self._running[place.request] = place

    def _break_promises(self, worker: WorkerId, model: ModelName | None = None) -> None:
        for request, promise in list(self._promises.items()):
            if promise.worker == worker and model in (None, promise.model):
                self.release(request)
                self.stirred.stir(promise.model)

    def _take_away(self, request: RequestId) -> None:
        place = self._running.pop(request, None)
        if place is None:
            return
        state = self._state(Place(place.worker, place.model))
        left = tuple(one for one in state.running if one.request != request)
        self._change(Place(place.worker, place.model), running=left, used_at_s=self.now)
        self.stirred.ease(place.worker)

    def _reserve(self, request: RequestId, move: Moving) -> None:
        self._count(Place(move.destination, move.model), num_reserved=1)
        self._moves[request] = move
        if (place := self._running.get(request)) is not None:
            self._put(replace(place, is_moving=True))

    def _count(self, place: Place, *, num_reserved: int = 0, num_promised: int = 0) -> None:
        state = self._state(place)
        self._change(
            place,
            num_reserved=state.num_reserved + num_reserved,
            num_promised=state.num_promised + num_promised,
            used_at_s=self.now,
        )

    def _state(self, place: Place) -> ModelView:
        state = self.model(place.worker, place.model)
        if state is None:
            raise InvariantBrokenError(f"a slot of {place.model} on {place.worker}, which does not have it")
        return state

    def _change(self, place: Place, **changes: object) -> None:
        changed = replace(self._state(place), **changes)
        self._workers[place.worker] = self._workers[place.worker].with_model(changed)

    def _count_claims(self, worker: WorkerId) -> None:
        claimed = 0
        for model, victims in self._claims[worker].items():
            # A victim that its worker has dropped by itself has nothing to free any more.
            states = [self._state(Place(worker, victim)) for victim in victims]
            freed = sum(state.info.device_bytes for state in states if state.holds_device)
            claimed += max(0, self._state(Place(worker, model)).info.device_bytes - freed)
        self._workers[worker] = replace(self._workers[worker], claimed_bytes=claimed)

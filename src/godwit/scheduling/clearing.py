"""Making room for a model where busy instances stand in the way: claims, their moves, and their end.

A claim is a reservation in two phases. When it begins, everything that it needs is booked at once: a slot
and memory at each victim's destination, and the memory that the victims will not free. Once the last victim
has left, the claim becomes the load. Whatever fails on the way gives the whole claim back; requests that have
moved by then stay where they are.
"""

from collections.abc import Iterator

from godwit.scheduling.bookings import Place
from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.events import Decision, Interrupt, Load, Move, Unload
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.startup import fit
from godwit.scheduling.view import Running, Times
from godwit.types import ModelName, RequestId, WorkerId

MOVE_AGAIN_S = 5.0
"""After a move that was to make room, or an early one, has failed, its request stays where it is so long."""


class Clearing:
    """All claims under way, in the ledger's books."""

    def __init__(self, ledger: Ledger, times: Times) -> None:
        self._ledger = ledger
        self._times = times
        self._preempting: dict[RequestId, WorkerId] = {}

    def has_left(self, request: RequestId) -> WorkerId | None:
        """A request is off its worker, or over; the worker if it was preempted there."""
        return self._preempting.pop(request, None)

    def load(self, worker: WorkerId, model: ModelName, choice: Choice, reason: str) -> list[Decision]:
        """Evict what the choice says, then load."""
        decisions = self.evict(choice, f"makes room for {model}")
        self._ledger.load(worker, model, self._ledger.now + choice.seconds)
        return [*decisions, Load(worker, model, reason, choice.queue_s, choice.load_s)]

    def evict(self, choice: Choice, reason: str) -> list[Decision]:
        """Unload the idle instances that the choice names."""
        for model in choice.evict:
            self._ledger.evict(choice.worker, model)
        return [Unload(choice.worker, model, reason) for model in choice.evict]

    def move(self, request: RequestId, choice: Choice, reason: str, resume_s: float = 0.0) -> list[Decision]:
        """Move a request to where the choice says, which loads the model first where it has to."""
        place = self._ledger.running[request]
        decisions: list[Decision] = []
        if choice.step is Step.LOAD:
            decisions = self.load(choice.worker, place.model, choice, f"{request} moves there: {reason}")
        self._ledger.begin_move(request, choice.worker)
        return [*decisions, Move(request, place.worker, choice.worker, reason, choice.seconds, resume_s)]

    def begin(self, model: ModelName, choice: Choice, reason: str) -> list[Decision] | None:
        """Claim a worker for a model and send its victims away; None, and nothing booked, if they cannot."""
        saved = self._ledger.save()
        decisions = self.evict(choice, f"makes room for {model}")
        place = Place(choice.worker, model)
        victims = [victim.model for victim in choice.victims]
        self._ledger.claim(place, victims, self._ledger.now + choice.seconds)
        for victim in choice.victims:
            sent = self._send_away(place, victim, reason)
            if sent is None:
                self._ledger.restore(saved)
                return None
            decisions += sent
        for decision in decisions:
            if isinstance(decision, Interrupt):
                self._preempting[decision.request] = choice.worker
        return decisions

    def advance(self, worker: WorkerId) -> list[Decision]:
        """Give claims on a worker up for which nobody waits any more, unload victims that have nothing left,
        and load where the last one has gone."""
        decisions: list[Decision] = []
        for model, victims in list(self._ledger.claims.get(worker, {}).items()):
            place = Place(worker, model)
            state = self._ledger.model(worker, model)
            if state is not None and not state.num_promised:
                self._ledger.end_claim(place)
                continue
            decisions += self._unload_done(place, victims)
            if not self._ledger.claims[worker][model]:
                decisions += self._load_at_last(place)
        return decisions

    def move_failed(self, request: RequestId) -> None:
        """A request stayed where it was: a claim that needs it gone is given up, and it is left in peace."""
        if (running := self._ledger.running.get(request)) is None:
            return
        if any(running.model in victims for victims in self._ledger.claims.get(running.worker, {}).values()):
            self._ledger.keep(request, self._ledger.now + MOVE_AGAIN_S)
            self.give_up(running.worker, running.model)

    def give_up(self, worker: WorkerId, model: ModelName) -> None:
        """Drop a claim, if there is one: the model goes, or a victim of it has to."""
        for coming, victims in list(self._ledger.claims.get(worker, {}).items()):
            if model == coming or model in victims:
                self._ledger.end_claim(Place(worker, coming))

    def _unload_done(self, place: Place, victims: frozenset[ModelName]) -> list[Decision]:
        decisions: list[Decision] = []
        for victim in sorted(victims):
            state = self._ledger.model(place.worker, victim)
            if state is None or state.num_used:
                continue
            if state.is_idle:
                decisions.append(Unload(place.worker, victim, f"has made room for {place.model}"))
            self._ledger.evict_victim(place, victim)
        return decisions

    def _load_at_last(self, place: Place) -> list[Decision]:
        self._ledger.end_claim(place)
        worker = self._ledger.workers[place.worker]
        info = worker.models[place.model].info
        if worker.free_bytes < info.device_bytes:
            return []  # The worker has loaded something by itself: whoever waits begins anew.
        queue_s = worker.queue_s(info.tier, self._ledger.now)
        load_s = self._times.load_s(place.worker, info)
        self._ledger.load(place.worker, place.model, self._ledger.now + queue_s + load_s)
        return [Load(place.worker, place.model, "room has been made for it", queue_s, load_s)]

    def _send_away(self, place: Place, victim: Victim, reason: str) -> list[Decision] | None:
        if victim.may_end:
            return []
        requests = self._ledger.workers[place.worker].models[victim.model].running
        if victim.destination is None:
            return [
                Interrupt(one.request, place.worker, f"preempted: {place.model} {reason}", is_preemption=True)
                for one in requests
            ]
        decisions: list[Decision] = []
        for one in requests:
            view = self._ledger.view(self._times)
            choice = fit(view, self._ledger.workers[victim.destination], one.model)
            if choice is None or self._ledger.is_coming(victim.destination, one.model):
                return None
            resume_s = self._times.resume_s(victim.destination, one.model, self._context(one))
            decisions += self.move(one.request, choice, f"makes room for {place.model}", resume_s)
        return decisions

    def _context(self, one: Running) -> float:
        return one.context_tokens(self._ledger.now, self._times.token_s(one.worker, one.model))


def idle_for(ledger: Ledger, keep_alive_s: float) -> Iterator[Place]:
    """Instances that have served nothing for so long and are not pinned."""
    for worker in ledger.workers.values():
        for name in worker.on_device:
            state = worker.models[name]
            if state.is_idle and not state.is_pinned and ledger.now - state.used_at_s >= keep_alive_s:
                yield Place(worker.id, name)

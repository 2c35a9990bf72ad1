"""The cheapest busy instances of one worker whose leaving makes room for a model.

The unit is the instance: all its requests go to one destination, since that may have to load the model for
them. What is idle goes first, since it costs nothing. So there is a shortage of bytes, a set of instances
that may leave, and for each of them destinations with a price and the memory that it takes there; wanted is
the subset and the assignment with the smallest sum of prices that free enough and all fit.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.keeping import Needs, needs
from godwit.scheduling.startup import (
    evictions,
    loading_s,
    refusal,
    remaining_s,
)
from godwit.scheduling.view import ClusterView, ModelView, WorkerView
from godwit.types import ModelName, WorkerId

# Steps of one search. Real workers need some tens; a worker of many instances that all want into the same
# few destinations could need millions, and the scheduler must never hang: then the best so far is taken.
MAX_STEPS = 5_000


class Option(NamedTuple):
    """One way for an instance to leave: its price, and the memory that it takes at the destination."""

    price: float
    victim: Victim
    needed_bytes: int = 0


class Unit(NamedTuple):
    """An instance that may leave: the bytes it frees, and its options, cheapest first; never none."""

    model: ModelName
    freed_bytes: int
    options: Sequence[Option]


class Places:
    """Where instances could go, for one decision: what it has looked up it remembers.

    Nobody is moved to the workers of `exclude`. `rooms` has the device memory that can be had at each worker
    where that has mattered.
    """

    def __init__(self, view: ClusterView, exclude: frozenset[WorkerId] = frozenset()) -> None:
        self.view = view
        self.rooms: dict[WorkerId, int] = {}
        self._exclude = exclude

    def moves(
        self, worker: WorkerView, state: ModelView, num_options: int, within_s: float = float("inf")
    ) -> list[Option]:
        """The `num_options` cheapest places for all requests of a busy instance, each with room for it alone.

        As many as there are candidates are enough for the cheapest set. The other victims fill at most one
        destination each, so if one were sent farther than to its k cheapest, then one of these would be
        untouched: it has room there alone, and the sum would not grow.
        """
        view, needed = self.view, needs(state)
        found = []
        for name in view.holders.get(state.info.name, ()):
            if name != worker.id and name not in self._exclude:
                place = self._place(view.workers[name], state, needed, within_s)
                if place is not None:
                    found.append((place[0], name, place[1]))
        found.sort()
        tokens = _context_tokens(view, worker, state) if found else []
        options: list[Option] = []
        for load_s, name, needed_bytes in found:
            if len(options) == num_options and load_s > options[-1].price:
                break
            victim = Victim(state.info.name, name, load_s, _resume_s(view, name, state, tokens))
            if victim.seconds <= within_s:
                options.append(Option(victim.seconds, victim, needed_bytes))
                options.sort(key=lambda option: (option.price, option.victim.destination))
                del options[num_options:]
        return options

    def _place(
        self, worker: WorkerView, leaving: ModelView, needed: Needs, within_s: float
    ) -> tuple[float, int] | None:
        """(load_s, bytes taken there) of a place for all of an instance's requests; None: it is none.

        A decision asks this of thousands of workers, so what most of them fail at comes first.
        """
        state = worker.models[leaving.info.name]
        info = state.info
        if state.is_coming:
            return None  # The memory that it waits for is not free yet, and a move would ask for it at once.
        if len(leaving.running) > worker.slots - state.num_used:
            return None
        needed_bytes = 0
        # What is idle there cannot be evicted for others once it serves the victim's requests.
        if not state.is_loading and (not info.is_loaded or state.is_evictable):
            needed_bytes = info.device_bytes
            if needed_bytes > worker.room_bytes:
                return None
            self.rooms[worker.id] = worker.room_bytes
        if info.is_loaded or state.is_loading:
            load_s = remaining_s(self.view, state) if state.is_loading else 0.0
        else:
            load_s = self.view.times.load_s(worker.id, info)
        if load_s > within_s:
            return None
        if info.digest != leaving.info.digest or refusal(worker, state) is not None:
            return None
        if not needed.are_met(leaving.info, info):
            return None
        if not info.is_loaded and not state.is_loading:
            load_s += worker.queue_s(info.tier, self.view.now)
        return load_s, needed_bytes


_ROUNDING_S = 1e-9
"""Sums and shares of equal prices may round differently: no choice shall be lost to that."""

Clear = Callable[[Places, WorkerView, ModelName, float], Choice | None]
"""(places, worker, model, most seconds that are of interest) → CLEAR there, or None."""


def clear_by_moving(
    places: Places, worker: WorkerView, model: ModelName, within_s: float = float("inf")
) -> Choice | None:
    """Room for `model` on `worker` by the cheapest moves; None: there are none, or none `within_s`."""
    view, state = places.view, worker.models[model]
    busy = candidates(view, worker, model)
    shortage = shortage_bytes(worker, model)
    if not _is_asked(worker, state, busy, shortage):
        return None
    queue_s, load_s = loading_s(view, worker, state.info)
    most_s = within_s - queue_s - load_s + _ROUNDING_S
    units = []
    for one in sorted(busy, key=lambda one: -one.info.device_bytes):
        options = places.moves(worker, one, len(busy), most_s)
        if options:
            units.append(Unit(one.info.name, one.info.device_bytes, options))
            if one.info.device_bytes >= shortage:
                # It is enough alone: from here on nothing dearer is of interest.
                most_s = options[0].price + _ROUNDING_S
    victims = cheapest(units, shortage, places.rooms, most_s)
    return None if victims is None else _cleared(worker, state, victims, queue_s, load_s)


def clear_by_killing(
    places: Places, worker: WorkerView, model: ModelName, within_s: float = float("inf")
) -> Choice | None:
    """Room for `model` on `worker` by preempting what is computed again soonest; None: it cannot be had."""
    busy = [one for one in candidates(places.view, worker, model) if can_be_preempted(one)]
    return _clear_on_the_spot(places.view, worker, model, busy, partial(kill, places.view, worker), within_s)


def clear_by_ending(
    places: Places, worker: WorkerView, model: ModelName, within_s: float = float("inf")
) -> Choice | None:
    """Room for `model` on `worker` by letting the fewest requests end, with nothing new in between."""
    busy = [one for one in _busy(worker, model) if not (one.is_leaving or one.is_loading or one.is_pinned)]
    return _clear_on_the_spot(places.view, worker, model, busy, let_end, within_s)


def _clear_on_the_spot(
    view: ClusterView,
    worker: WorkerView,
    model: ModelName,
    busy: Sequence[ModelView],
    option: Callable[[ModelView], Option],
    within_s: float,
) -> Choice | None:
    """The cheapest of the busy instances, each of which has one way to leave, and none that takes time."""
    state, shortage = worker.models[model], shortage_bytes(worker, model)
    if not _is_asked(worker, state, busy, shortage):
        return None
    queue_s, load_s = loading_s(view, worker, state.info)
    if queue_s + load_s > within_s:
        return None
    units = [Unit(one.info.name, one.info.device_bytes, [option(one)]) for one in busy]
    victims = cheapest(units, shortage, {})
    return None if victims is None else _cleared(worker, state, victims, queue_s, load_s)


def shortage_bytes(worker: WorkerView, model: ModelName) -> int:
    """What busy instances must free for `model` when everything idle has gone."""
    return worker.models[model].info.device_bytes - worker.room_bytes


def stay_reason(view: ClusterView, state: ModelView) -> str | None:
    """Why a busy instance must stay whatever its requests cost elsewhere; None: it may leave."""
    if state.is_loading or state.is_leaving:
        return "it is loading" if state.is_loading else "it is leaving already"
    if state.is_pinned:
        return "it is pinned"
    if state.num_reserved or state.num_promised:
        return "requests are on their way to it"
    if any(one.is_moving for one in state.running):
        return "one of its requests is moving already"
    if any(one.stays_until_s > view.now for one in state.running):
        return "one of its requests could not move or was preempted before"
    return None


def candidates(view: ClusterView, worker: WorkerView, model: ModelName) -> list[ModelView]:
    """Busy instances other than the asked model's that may leave."""
    return [one for one in _busy(worker, model) if one.running and stay_reason(view, one) is None]


def can_be_preempted(state: ModelView) -> bool:
    """Whether the instance's requests could go on exactly, there if nowhere else."""
    return needs(state).are_met(state.info, state.info)


def _busy(worker: WorkerView, model: ModelName) -> list[ModelView]:
    states = [worker.models[name] for name in worker.on_device if name != model]
    return [one for one in states if one.num_used]


def kill(view: ClusterView, worker: WorkerView, state: ModelView) -> Option:
    """Preempt the instance's requests; the price is what it takes to compute their KV again."""
    resume_s = _resume_s(view, worker.id, state, _context_tokens(view, worker, state))
    return Option(resume_s, Victim(state.info.name, None, 0.0, resume_s))


def let_end(state: ModelView) -> Option:
    """Leave the instance's requests to end; the price is how many there are."""
    return Option(float(state.num_used), Victim(state.info.name, None, 0.0, 0.0, may_end=True))


def _context_tokens(view: ClusterView, worker: WorkerView, state: ModelView) -> list[float]:
    token_s = view.times.token_s(worker.id, state.info.name)
    return [one.context_tokens(view.now, token_s) for one in state.running]


def _resume_s(view: ClusterView, worker: WorkerId, state: ModelView, tokens: Iterable[float]) -> float:
    return sum(view.times.resume_s(worker, state.info.name, context) for context in tokens)


def _is_asked(worker: WorkerView, state: ModelView, busy: Sequence[ModelView], shortage: int) -> bool:
    """Whether the model could be loaded here if there was room, and there is none, but might be."""
    if refusal(worker, state) is not None or state.holds_device or state.is_coming:
        return False
    return 0 < shortage <= sum(one.info.device_bytes for one in busy)


def _cleared(
    worker: WorkerView, state: ModelView, victims: tuple[Victim, ...], queue_s: float, load_s: float
) -> Choice:
    freed = sum(worker.models[victim.model].info.device_bytes for victim in victims)
    # Victims are seldom of the right size: what they free beyond the shortage spares idle instances.
    evict = evictions(worker, state.info.device_bytes - freed) or ()
    return Choice(worker.id, Step.CLEAR, evict, victims, queue_s, load_s)


def cheapest(
    units: Iterable[Unit], shortage: int, rooms: dict[WorkerId, int], most: float = float("inf")
) -> tuple[Victim, ...] | None:
    """The victims that free `shortage` bytes at the lowest sum of prices; None: nobody can, for `most`.

    `rooms` bounds what they take at each destination together. Equal sums: fewer victims, then fewer bytes
    freed, then the cheaper bytes and names.
    """
    search = _Search(units, rooms, shortage, most)
    search.descend(0, 0.0, 0)
    if search.best is None:
        return None
    return tuple(sorted(search.best, key=lambda victim: victim.model))


class _Search:
    """Depth first, branch and bound: each unit leaves by one of its options, cheapest first, or stays."""

    def __init__(self, units: Iterable[Unit], rooms: dict[WorkerId, int], shortage: int, most: float) -> None:
        # By price a byte: so the first descent is a good one, and the bound of `_bound` is one scan.
        useful = [unit for unit in units if unit.freed_bytes > 0]
        self.units = sorted(useful, key=lambda unit: (unit.options[0].price / unit.freed_bytes, unit.model))
        self.rooms = dict(rooms)
        self.shortage = shortage
        self.best: tuple[Victim, ...] | None = None
        self.best_key: tuple[float, float, float] = (most, float("inf"), float("inf"))
        self.chosen: list[Victim] = []
        self.num_steps = 0

    def descend(self, index: int, price: float, freed: int) -> None:
        """Decide on the units from `index` on; those before cost `price` and free `freed` bytes."""
        if freed >= self.shortage:
            key = (price, len(self.chosen), freed)
            if key < self.best_key:
                self.best, self.best_key = tuple(self.chosen), key
            return
        self.num_steps += 1
        if self.num_steps > MAX_STEPS or not self._can_be_better(index, price, freed):
            return
        unit = self.units[index]
        for option in unit.options:
            destination = option.victim.destination
            if destination is not None and option.needed_bytes:
                if option.needed_bytes > self.rooms[destination]:
                    continue
                self.rooms[destination] -= option.needed_bytes
            self.chosen.append(option.victim)
            self.descend(index + 1, price + option.price, freed + unit.freed_bytes)
            self.chosen.pop()
            if destination is not None and option.needed_bytes:
                self.rooms[destination] += option.needed_bytes
        self.descend(index + 1, price, freed)

    def _can_be_better(self, index: int, price: float, freed: int) -> bool:
        """Whether the rest could be enough and the whole better than the best, if no two were in each
        other's way: each takes its cheapest option that has room now.

        Two bounds hold, and the larger is taken: victims could be cut (the cheapest bytes first), or there
        are as many as are needed of the largest, at the price of the cheapest.
        """
        rest = [one for one in map(self._open, self.units[index:]) if one is not None]
        missing = self.shortage - freed
        num_needed = _num_needed([num_bytes for _, num_bytes in rest], missing)
        if num_needed is None:
            return False
        by_count = price
        for one in sorted(one for one, _ in rest)[:num_needed]:
            by_count += one
        bound = max(by_count, price + _cut_price(rest, missing))
        return (bound, len(self.chosen) + num_needed, self.shortage) < self.best_key

    def _open(self, unit: Unit) -> tuple[float, int] | None:
        """The price of the unit's cheapest option that has room now, and its bytes."""
        for option in unit.options:
            destination = option.victim.destination
            if destination is None or option.needed_bytes <= self.rooms.get(destination, option.needed_bytes):
                return option.price, unit.freed_bytes
        return None


def _num_needed(sizes: Iterable[int], missing: int) -> int | None:
    """How many of the largest are at least `missing`; None: all are not."""
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        missing -= size
        if missing <= 0:
            return count
    return None


def _cut_price(rest: Iterable[tuple[float, int]], missing: int) -> float:
    """The price of `missing` bytes if any part of an instance could leave."""
    total = 0.0
    for price, size in sorted(rest, key=lambda one: one[0] / one[1]):
        if size >= missing:
            return total + price * missing / size
        total += price
        missing -= size
    return total

"""Small clusters at random, and the cheapest moves in them found by trying all: written without our code."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from hypothesis import strategies as st
from msgspec.structs import replace

from godwit.scheduling.view import ClusterView, ModelView, WorkerView
from godwit.types import ModelName, Tier, WorkerId
from tests.scheduling.views import A, FixedTimes, absent, busy, changed, cluster, idle, worker


@dataclass(frozen=True)
class Asked:
    """A cluster whose first worker is asked to load `a`."""

    view: ClusterView
    first: WorkerView

    def busy(self) -> list[ModelView]:
        return [one for one in self.first.models.values() if one.running and self._may_leave(one)]

    def _may_leave(self, one: ModelView) -> bool:
        is_free = one.num_used == one.num_running and not one.is_pinned and not one.is_leaving
        return is_free and not any(r.is_moving or r.stays_until_s > self.view.now for r in one.running)

    def shortage(self) -> int:
        return self.first.models[A].info.device_bytes - room(self.first)

    def sets(self) -> Iterator[list[ModelView]]:
        candidates = self.busy()
        for size in range(1, len(candidates) + 1):
            for chosen in combinations(candidates, size):
                if sum(one.info.device_bytes for one in chosen) >= self.shortage():
                    yield list(chosen)

    def move_s(self, one: ModelView, name: WorkerId) -> float | None:
        """Seconds of moving all of an instance's requests there; None: it cannot be. Memory not looked at."""
        there = self.view.workers[name]
        state = there.models.get(one.info.name)
        if state is None or name == self.first.id or there.is_draining:
            return None
        if state.is_leaving or state.is_coming:
            return None
        num = state.num_running + state.num_reserved + state.num_promised + one.num_running
        if num > there.slots or state.info.digest != one.info.digest:
            return None
        seconds = sum(
            self.view.times.resume_s(name, one.info.name, r.num_tokens + 8 * self.view.now)
            for r in one.running
        )
        if state.is_loading:
            return seconds + max(0.0, state.ready_at_s - self.view.now)
        if not state.info.is_loaded:
            ends = [m.ready_at_s for m in there.models.values() if m.is_loading]
            same = [m for m in there.models.values() if m.is_loading and m.info.tier is state.info.tier]
            assert len(same) <= len(ends)
            seconds += max([0.0, *(m.ready_at_s - self.view.now for m in same)])
            seconds += self.view.times.load_s(name, state.info)
        return seconds

    def fits(self, assignment: dict[ModelName, WorkerId]) -> bool:
        """Whether every destination can hold all that it gets, whatever idle it evicts for it."""
        for name in set(assignment.values()):
            there = self.view.workers[name]
            arriving = {model for model, destination in assignment.items() if destination == name}
            used = there.claimed_bytes
            for state in there.models.values():
                stays = state.is_loading or (
                    state.info.is_loaded and (state.num_used or state.is_pinned or state.is_leaving)
                )
                is_new = state.info.name in arriving
                used += state.info.device_bytes if stays or is_new else 0
            alone = {one for one in arriving if _takes_memory(there.models[one])}
            if alone and used > there.device_bytes:
                return False
        return True


def _takes_memory(state: ModelView) -> bool:
    if state.is_loading:
        return False
    return not state.info.is_loaded or not (state.num_used or state.is_pinned)


def room(there: WorkerView) -> int:
    """Memory that is not held by what must stay."""
    kept = [
        m.info.device_bytes
        for m in there.models.values()
        if m.is_loading or (m.info.is_loaded and (m.num_used or m.is_pinned or m.is_leaving))
    ]
    return there.device_bytes - there.claimed_bytes - sum(kept)


def cheapest_moves(asked: Asked) -> tuple[float, int, int] | None:
    """(seconds, victims, bytes freed) of the best set and assignment; None: there is none."""
    best: tuple[float, int, int] | None = None
    for chosen in asked.sets():
        size = sum(one.info.device_bytes for one in chosen)
        for places in product(asked.view.workers, repeat=len(chosen)):
            seconds = 0.0
            for one, name in zip(chosen, places, strict=True):
                move_s = asked.move_s(one, name)
                if move_s is None:
                    break
                seconds += move_s
            else:
                key = (seconds, len(chosen), size)
                assignment = {one.info.name: name for one, name in zip(chosen, places, strict=True)}
                if (best is None or key < best) and asked.fits(assignment):
                    best = key
    return best


@st.composite
def clusters(draw: st.DrawFn) -> Asked:
    """A worker of up to 5 instances that somebody wants to use for `a`, and up to 5 others."""
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    num_others = draw(st.integers(0, 5 if len(names) < 4 else 3))
    sizes = {name: draw(st.integers(1, 5)) for name in names}
    tokens = st.lists(st.sampled_from([0, 32, 64, 128, 512]), min_size=1, max_size=2)
    tiers = st.sampled_from([Tier.DRAM, Tier.SSD])

    def state(name: str, kinds: str) -> ModelView:
        size, tier = sizes[name], draw(tiers)
        match draw(st.sampled_from(kinds)):
            case "b":
                return busy(name, size, draw(tokens))
            case "i":
                return idle(name, size, tier)
            case "p":
                return idle(name, size, tier, is_pinned=True)
            case "l":
                return absent(name, size, tier, is_loading=True, ready_at_s=draw(st.sampled_from([0.5, 2.0])))
            case "c":
                return absent(name, size, tier, is_coming=True, ready_at_s=4.0)
            case "s":
                return changed(busy(name, size, draw(tokens)), stays_until_s=9.0)
            case "r":
                return busy(name, size, draw(tokens), num_reserved=1)
            case "d":
                there = absent(name, size, tier)
                return replace(there, info=replace(there.info, digest="2"))
            case _:
                return absent(name, size, tier)

    models = [state(name, "bbbbbbbbisr") for name in names]
    held = sum(sizes.values())
    first = worker("w0", held + draw(st.integers(0, 2)), absent("a", draw(st.integers(1, held))), *models)
    others = []
    for number in range(1, num_others + 1):
        chosen = [name for name in names if draw(st.booleans()) or draw(st.booleans())]
        there = worker(f"w{number}", 0, *(state(name, "aaaabiplcd") for name in chosen), slots=3)
        others.append(replace(there, device_bytes=there.held_bytes + draw(st.integers(0, 6))))
    resumes = {
        (one.id, name): draw(st.sampled_from([1 / 128, 1 / 64])) for one in others for name in one.models
    }
    view = cluster(first, *others, times=FixedTimes(resumes=resumes))
    return Asked(view, first)

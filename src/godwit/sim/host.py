"""A host's checkpoints in virtual time: what is in which tier, and loads that take turns on the ways out.

What `worker/store.py` does with files; where one has both, only the seconds are modelled.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from godwit.sim.loop import Loop
from godwit.sim.spec import HostSpec, ModelSpec
from godwit.types import LoadRecord, ModelName, Tier

Loaded = Callable[[LoadRecord], None]


_FARTHEST_FIRST = (Tier.REMOTE, Tier.SSD, Tier.DRAM)


@dataclass(slots=True)
class _Load:
    """A load: it takes turns on the ways out of `at` and of all nearer tiers; `tier` is the first of them."""

    model: ModelName
    done: Loaded
    is_wanted: Callable[[], bool]
    at: Tier
    asked_s: float
    began_s: float
    tier: Tier | None = None
    queue_s: float = 0.0


@dataclass
class Host:
    """One machine. `slowdown` multiplies what its loads take (a slow disk); `on_tier` hears of changes."""

    spec: HostSpec
    models: dict[ModelName, ModelSpec]
    loop: Loop
    slowdown: float = 1.0
    on_tier: list[Callable[[ModelName], None]] = field(default_factory=list)
    _dram: dict[ModelName, None] = field(default_factory=dict)
    _ssd: set[ModelName] = field(default_factory=set)
    _lines: dict[Tier, deque[_Load]] = field(default_factory=dict)
    _is_busy: set[Tier] = field(default_factory=set)
    _in_use: dict[ModelName, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ssd = set(self.spec.on_ssd)
        for model in self.spec.in_dram:
            self._keep(model)

    def tier(self, model: ModelName) -> Tier:
        """The nearest tier below the device that has the checkpoint."""
        if model in self._dram:
            return Tier.DRAM
        return Tier.SSD if model in self._ssd else Tier.REMOTE

    def load(self, model: ModelName, done: Loaded, is_wanted: Callable[[], bool]) -> None:
        """Bring a checkpoint to a device: `done` hears what it took, but not where it `is_wanted` no more
        when its turn comes or it is there."""
        now_s = self.loop.now_s
        self._in_use[model] = self._in_use.get(model, 0) + 1
        if model in self._dram:
            self._dram[model] = self._dram.pop(model)
        self._wait(_Load(model, done, is_wanted, self.tier(model), now_s, now_s))

    def _wait(self, load: _Load) -> None:
        """Let a load wait for its turn on the way out of where it is."""
        load.asked_s = self.loop.now_s
        self._lines.setdefault(load.at, deque()).append(load)
        self._next(load.at)

    def _next(self, line: Tier) -> None:
        while (loads := self._lines[line]) and line not in self._is_busy:
            load = loads.popleft()
            if not load.is_wanted():
                self._in_use[load.model] -= 1
                continue
            load.queue_s += self.loop.now_s - load.asked_s
            # An earlier load may have brought it nearer.
            if line is not Tier.DRAM and (nearest := _nearer(self.tier(load.model), line)) is not line:
                load.at = nearest
                self._wait(load)
            else:
                self._go(line, load)

    def _go(self, line: Tier, load: _Load) -> None:
        """Bring a load to the next tier, or from memory to the device."""
        load.tier = load.tier or line
        self._is_busy.add(line)

        def over() -> None:
            self._is_busy.discard(line)
            if line is Tier.DRAM:
                self._over(load)
            else:
                if line is Tier.REMOTE:
                    self._ssd.add(load.model)
                else:
                    self._keep(load.model)
                load.at = _FARTHEST_FIRST[_FARTHEST_FIRST.index(line) + 1]
                self._wait(load)
            self._next(line)

        self.loop.after(self._seconds(load.model, line), over)

    def _seconds(self, model: ModelName, line: Tier) -> float:
        """What a way alone takes: bandwidths are of the whole ways to the device."""
        rates, num_bytes = self.spec.bytes_per_s, self.models[model].checkpoint_bytes
        seconds = num_bytes / rates[line]
        nearer = _FARTHEST_FIRST[_FARTHEST_FIRST.index(line) + 1 :]
        return max(0.0, seconds - (num_bytes / rates[nearer[0]] if nearer else 0.0)) * self.slowdown

    def _over(self, load: _Load) -> None:
        self._in_use[load.model] -= 1
        if load.is_wanted():
            seconds = self.loop.now_s - load.began_s - load.queue_s
            num_bytes = self.models[load.model].checkpoint_bytes
            load.done(LoadRecord(load.tier or Tier.DRAM, num_bytes, load.queue_s, seconds))

    def _keep(self, model: ModelName) -> None:
        """Keep a checkpoint in DRAM, as the latest used; others leave, but none that is being loaded.

        One that does not fit beside those does not stay.
        """
        before = self.tier(model)
        pinned = [one for one in self._dram if one != model and self._in_use.get(one)]
        if self._bytes_of([model, *pinned]) > self.spec.dram_bytes:
            return
        self._dram.pop(model, None)
        gone: list[ModelName] = []
        while self._bytes_of([model, *self._dram]) > self.spec.dram_bytes:
            gone.append(next(one for one in self._dram if not self._in_use.get(one)))
            del self._dram[gone[-1]]
        self._dram[model] = None
        for one in (model, *gone):
            if one != model or self.tier(model) is not before:
                for tell in self.on_tier:
                    tell(one)

    def _bytes_of(self, models: Iterable[ModelName]) -> int:
        return sum(self.models[one].checkpoint_bytes for one in models)


def _nearer(one: Tier, other: Tier) -> Tier:
    return max(one, other, key=_FARTHEST_FIRST.index)

"""A host's checkpoints in virtual time: what is in which tier, and loads that take turns on the ways out.

What `worker/store.py` does with files; where one has both, only the seconds are modelled.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from godwit.sim.loop import Loop
from godwit.sim.spec import HostSpec, ModelSpec
from godwit.types import LoadRecord, ModelName, Tier

Loaded = Callable[[LoadRecord], None]


@dataclass(slots=True)
class _Turn:
    """A load that waits for its turn on a tier's way out."""

    model: ModelName
    asked_s: float
    done: Loaded
    is_wanted: Callable[[], bool]


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
    _lines: dict[Tier, deque[_Turn]] = field(default_factory=dict)
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
        tier = self.tier(model)
        self._lines.setdefault(tier, deque()).append(_Turn(model, self.loop.now_s, done, is_wanted))
        self._next(tier)

    def _next(self, line: Tier) -> None:
        turns = self._lines[line]
        while turns and not turns[0].is_wanted():
            turns.popleft()
        if line in self._is_busy or not turns:
            return
        turn = turns.popleft()
        tier = self.tier(turn.model)  # an earlier load may have brought it nearer
        num_bytes = self.models[turn.model].checkpoint_bytes
        seconds = num_bytes / self.spec.bytes_per_s[tier] * self.slowdown
        queue_s = self.loop.now_s - turn.asked_s
        self._is_busy.add(line)
        self._in_use[turn.model] = self._in_use.get(turn.model, 0) + 1

        def over() -> None:
            self._is_busy.discard(line)
            self._in_use[turn.model] -= 1
            if tier is Tier.REMOTE:
                self._ssd.add(turn.model)
            self._keep(turn.model)
            if turn.is_wanted():
                turn.done(LoadRecord(tier, num_bytes, queue_s, seconds))
            self._next(line)

        self.loop.after(seconds, over)

    def _keep(self, model: ModelName) -> None:
        """Keep a checkpoint in DRAM, as the latest used; others leave, but none that is being loaded."""
        before = self.tier(model)
        self._dram.pop(model, None)
        self._dram[model] = None
        total = sum(self.models[one].checkpoint_bytes for one in self._dram)
        gone = []
        for one in list(self._dram):
            if total <= self.spec.dram_bytes:
                break
            if not self._in_use.get(one) and (one != model or total > self.spec.dram_bytes):
                total -= self.models[one].checkpoint_bytes
                del self._dram[one]
                gone.append(one)
        for one in (model, *gone):
            if one != model or self.tier(model) is not before:
                for tell in self.on_tier:
                    tell(one)

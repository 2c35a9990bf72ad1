"""A small world at random for `godwit sim chaos`: a cluster, what it is asked for, and what befalls it.

All of it is drawn from the seed before anything happens, as values: so that a failing one can be shortened.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from godwit.costs.constants import Constant
from godwit.costs.known import Constants, PairConstants, ServerConstants
from godwit.protocol.head import HeadLimits
from godwit.scheduling.early import EarlySettings
from godwit.scheduling.policies import POLICIES
from godwit.scheduling.prospects import Rule
from godwit.sim.draws import PackedDraws
from godwit.sim.spec import ClusterSpec, HostSpec, ModelSpec, Policies, Rates, WorkerSpec
from godwit.sim.world import Life
from godwit.types import ModelName, MoveLimits, Tier, WorkerId

EXTRA = ModelName("x")
"""No worker has it before it is added."""
LAST_ASK_S = 4.0
LAST_FAULT_S = 6.0
PLACEMENT_TIMEOUT_S = 25.0
DRAWS, OTHER = PackedDraws(0), PackedDraws(1)
KNOWN = Constants(
    PairConstants(Constant(0.0), Constant(2e5)),
    ServerConstants(Constant(2000.0), Constant(0.0), kv_bytes_per_token=Constant(100.0)),
)
"""Shipping and computing a token take equally long, so that a split has two halves."""
ON = [
    "Accepted",
    "Append",
    "Commit",
    "InDoubt",
    "Keep",
    "KvPart",
    "KvWanted",
    "Leave",
    "Load",
    "Migrate",
    "Migrated",
    "ModelChanged",
    "Prepare",
    "Prepared",
    "Release",
    "Resume",
    "Resumed",
    "Submit",
    "Tokens",
    "Unload",
]
"""Messages that something may befall the cluster right after."""
_POLICIES = (*POLICIES, "live_migration", "live_migration", "preemption", "preemption")
"""Those that make room for others have most to go wrong."""
_ROUNDS = ("Append", "Commit", "KvPart", "KvWanted", "Resume", "Resumed")
AFTER = {
    "drop": _ROUNDS,
    "corrupt": ("Migrate", "Resume", ""),
    "overtake": _ROUNDS,
    "fail_load": ("Load", "Prepare", ""),
    "replay": ("Tokens",),
    "move": ("Accepted", "Tokens", ""),
}
"""Kinds that find something to do only after these."""


class Asked(Struct, frozen=True):
    """One request. It has the end of the sequence in its tokens, or with `ignore_eos` all `max_tokens`.

    Its client leaves as it gets the token `leaves_at`, None: not for that.
    """

    at_s: float
    model: ModelName
    num_prompt: int
    max_tokens: int
    seed: int
    ignore_eos: bool
    leaves_at: int | None = None


class Fault(Struct, frozen=True):
    """Something that happens at a time, or (`on`) `later_s` after the next such message from then on.

    `x` and `y` say to whom and how: numbers that choose from what there is then.
    """

    at_s: float
    kind: str
    x: int
    y: int
    on: str = ""
    later_s: float = 0.0


class Situation(Struct, frozen=True):
    """One world and all that befalls it. `skews_s` are of the workers' clocks; `relayed` cannot dial.

    The hosts `others` have other checkpoints under the models' names.
    """

    seed: int
    cluster: ClusterSpec
    settings: Policies
    asks: tuple[Asked, ...]
    faults: tuple[Fault, ...]
    skews_s: tuple[float, ...]
    relayed: tuple[tuple[WorkerId, WorkerId], ...]
    cleanup_s: float
    lump_tokens: int
    limits: HeadLimits
    move_limits: MoveLimits
    others: tuple[str, ...]

    def life(self) -> Life:
        """How its parts live."""
        return Life(
            self.settings.dead_after_s,
            lambda: self.cleanup_s,
            self.lump_tokens,
            limits=self.limits,
            move_limits=self.move_limits,
            known=KNOWN,
            others=dict.fromkeys(self.others, OTHER),
        )


class _Dice:
    """Draws from one generator, a block at a time: single draws take a hundred times as long."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._left: list[float] = []

    def uniform(self) -> float:
        if not self._left:
            self._left = self._rng.random(256).tolist()
        return self._left.pop()

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.uniform()

    def integer(self, least: int, most: int) -> int:
        """One of [least, most]."""
        return least + int(self.uniform() * (most - least + 1))

    def one_in(self, number: float) -> bool:
        return self.uniform() * number < 1

    def weighted(self, weights: dict[str, int]) -> str:
        left = self.uniform() * sum(weights.values())
        for name, weight in weights.items():
            left -= weight
            if left < 0:
                return name
        return name


def situation_of(seed: int, kinds: dict[str, int]) -> Situation:
    """The world of a seed; `kinds` of faults, each as often as its number says."""
    dice = _Dice(seed)
    models = _models(dice)
    extra = _model(dice, EXTRA)
    cluster = _cluster(dice, models)
    cluster = replace(cluster, models=(*models, extra))
    names = [worker.name for worker in cluster.workers]
    settings = Policies(
        policy=_POLICIES[dice.integer(0, len(_POLICIES) - 1)],
        method=["tokens", "tokens", "auto", "kv", "split"][dice.integer(0, 4)],
        keep_alive_s=2.0 if dice.one_in(4) else None,
        patience_s=dice.between(0.2, 3.0),
        placement_timeout_s=PLACEMENT_TIMEOUT_S,
        tick_s=0.2,
        dead_after_s=dice.between(0.3, 1.5),
        max_failovers=dice.integer(3, 8),
        early=_early(dice) if dice.one_in(3) else None,
        stall_s=dice.between(0.0, 2.0),
    )
    last_ask_s = dice.between(0.5, LAST_ASK_S)
    known = [*models, extra] if dice.one_in(6) else models
    asks = [_asked(dice, known, last_ask_s) for _ in range(dice.integer(3, 14))]
    faults = [_fault(dice, kinds) for _ in range(dice.integer(0, dice.integer(1, 20)))]
    # Misfortunes seldom come alone.
    faults += [
        replace(fault, kind=dice.weighted(kinds), y=dice.integer(0, 59)) for fault in faults if dice.one_in(5)
    ]
    faults += [_fault(dice, {"move": 1}) for _ in range(dice.integer(0, 8))]
    return Situation(
        seed,
        cluster,
        settings,
        tuple(sorted(asks, key=lambda ask: ask.at_s)),
        tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind))),
        skews_s=tuple(dice.between(-1e3, 1e3) if dice.one_in(2) else 0.0 for _ in names),
        relayed=tuple((x, y) for x in names for y in names if x != y and dice.one_in(8)),
        cleanup_s=0.0 if dice.one_in(2) else dice.between(0.0, 0.6),
        lump_tokens=1 if dice.one_in(2) else dice.integer(2, 16),
        limits=HeadLimits(
            max_queued=dice.integer(1, 4) if dice.one_in(8) else 100,
            max_running=dice.integer(2, 8) if dice.one_in(8) else 100,
            prepare_timeout_s=dice.between(0.2, 2.0) if dice.one_in(3) else 6.0,
            progress_timeout_s=dice.between(0.5, 3.0) if dice.one_in(10) else 300.0,
        ),
        move_limits=MoveLimits(
            timeout_s=dice.between(0.1, 1.0) if dice.one_in(3) else 3.0,
            patience_rounds=dice.integer(2, 6),
            max_shadow_rounds=dice.integer(3, 64),
            pace=dice.between(1.0, 2.0),
        ),
        others=(cluster.hosts[-1].name,) if len(cluster.hosts) > 1 and dice.one_in(8) else (),
    )


def _early(dice: _Dice) -> EarlySettings:
    rule: Rule = "window" if dice.one_in(2) else "classic"
    hysteresis_s = dice.between(-1.0, 0.2)  # below 0 they leave for next to nothing
    return EarlySettings(rule, hysteresis_s, max_hops=3, min_remaining=4, check_s=0.3)


def _models(dice: _Dice) -> list[ModelSpec]:
    return [_model(dice, ModelName("abcd"[number])) for number in range(dice.integer(1, 4))]


def _model(dice: _Dice, name: ModelName) -> ModelSpec:
    return ModelSpec(
        name, checkpoint_bytes=dice.integer(1, 8), device_bytes=dice.integer(2, 8), context_tokens=400
    )


def _cluster(dice: _Dice, models: list[ModelSpec]) -> ClusterSpec:
    hosts: list[HostSpec] = []
    workers: list[WorkerSpec] = []
    for number in range(dice.integer(1, 3)):
        # The first host has them all, so that nothing is asked for in vain while its workers are up.
        here = [model for model in models if number == 0 or not dice.one_in(4)] or models[:1]
        in_dram = tuple(model.name for model in here if dice.one_in(2))
        speeds = {
            Tier.DRAM: dice.between(8.0, 80.0),
            Tier.SSD: dice.between(2.0, 20.0),
            Tier.REMOTE: dice.between(2.0, 10.0),
        }
        hosts.append(
            HostSpec(f"h{number}", speeds, dice.integer(4, 16), in_dram, tuple(model.name for model in here))
        )
        for _ in range(dice.integer(1, 2) + (number == 0 and not dice.one_in(8))):
            workers.append(_worker(dice, WorkerId(f"w{len(workers)}"), f"h{number}", here))
    return ClusterSpec(tuple(hosts), tuple(workers), tuple(models))


def _worker(dice: _Dice, name: WorkerId, host: str, models: list[ModelSpec]) -> WorkerSpec:
    biggest = max(model.device_bytes for model in models)
    device_bytes = biggest + dice.integer(0, 6 if dice.one_in(2) else 20)
    loaded, left = [], device_bytes
    for model in models:
        if model.device_bytes <= left and dice.one_in(2):
            loaded.append(model.name)
            left -= model.device_bytes
    decode_s = dice.between(0.01, 0.06)
    return WorkerSpec(
        name,
        host,
        device_bytes,
        slots=dice.integer(1, 3),
        rates=Rates((decode_s, decode_s * 1.1), dice.between(300.0, 3000.0), chunk_tokens=32),
        loaded=tuple(loaded),
        link_bytes_per_s=dice.between(3e4, 1e6),
        delay_s=dice.between(0.0005, 0.05 if dice.one_in(3) else 0.01),
    )


def _asked(dice: _Dice, models: list[ModelSpec], last_s: float) -> Asked:
    is_long = dice.one_in(4)
    return Asked(
        dice.between(0.0, last_s),
        models[min(dice.integer(0, len(models) - 1), dice.integer(0, len(models) - 1))].name,
        dice.integer(60, 250) if is_long else dice.integer(1, 20),
        dice.integer(20, 90) if is_long else dice.integer(1, 90),
        dice.integer(0, 1 << 20),
        not dice.one_in(3),
        dice.integer(0, 30) if dice.one_in(12) else None,
    )


def _fault(dice: _Dice, kinds: dict[str, int]) -> Fault:
    kind = dice.weighted(kinds)
    after = AFTER.get(kind, ON if dice.one_in(2.5) else ("",))
    return Fault(
        dice.between(0.1, LAST_FAULT_S),
        kind,
        dice.integer(0, 59),
        dice.integer(0, 59),
        after[dice.integer(0, len(after) - 1)],
        0.0 if dice.one_in(2) else dice.between(0.0, 0.06),
    )

"""What a scenario file may say. Units are in the names; an unknown key is an error."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from godwit.scheduling.early import EarlySettings
from godwit.sim.metrics import Slo
from godwit.sim.spec import NotNegative, Policies, Positive

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Sources = Literal["gsm8k", "sharegpt", "sharegpt-turns", "azure-conv", "azure-code", "mooncake", "lognormal"]
Spot = Literal[
    "bamboo-p2",
    "bamboo-g4dn-1c",
    "bamboo-g4dn-1d",
    "parcae",
    "parcae-hh",
    "parcae-hl",
    "parcae-lh",
    "parcae-ll",
]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: an unknown key is an error."""


class Model(Section, frozen=True, kw_only=True):
    """A kind of model of which there are `copies` under names of their own, alone on `devices` devices.

    A step takes `decode_ms` by the number of requests in it (the last value holds for more), a prompt one
    second per `prefill_tps` tokens; a machine that says its own rates has those.
    """

    copies: Count = 1
    checkpoint_gb: Positive
    devices: Count = 1
    context_tokens: Count = 4096
    kv_bytes_per_token: Annotated[int, Meta(ge=0)] = 0
    decode_ms: Annotated[tuple[Positive, ...], Meta(min_length=1)] | None = None
    prefill_tps: Positive | None = None


class Sessions(Section, frozen=True, kw_only=True):
    """How long machines of a kind stay and stay away; see `godwit.sim.sessions.Life`.

    Each machine's scale is drawn between `scale_low` and `scale_high` times `scale_s`. A loss takes another
    one of the kind with it with the probability `together`.
    """

    scale_s: Positive
    shape: Positive = 1.0
    mean_gap_s: NotNegative = 0.0
    scale_low: Positive = 1.0
    scale_high: Positive = 1.0
    notice_s: NotNegative = 0.0
    together: Share = 0.0


class Replay(Section, frozen=True, kw_only=True):
    """Machines come and go as in a recorded trace, as many as it has, from its second `from_s` on."""

    trace: Spot
    from_s: NotNegative = 0.0
    notice_s: NotNegative = 0.0


class Machine(Section, frozen=True, kw_only=True):
    """A kind of machine: `count` of them, each with `devices`, which share its tiers and have a link each.

    `dram_gb` cache checkpoints. Speeds are drawn between `speed_low` and `speed_high` times what is said.
    Without `sessions` and `replay` they stay.
    """

    count: Count = 1
    devices: Count = 1
    device_gb: Positive
    slots: Count = 1
    ssd_gb: NotNegative = 2000.0
    dram_gb: NotNegative = 0.0
    ssd_gb_per_s: Positive = 5.0
    dram_gb_per_s: Positive = 20.0
    remote_gb_per_s: Positive = 1.25
    link_mb_per_s: Positive = 1250.0
    delay_ms: NotNegative = 0.5
    decode_tps: Positive | None = None
    prefill_tps: Positive | None = None
    speed_low: Positive = 1.0
    speed_high: Positive = 1.0
    context_tokens: Count | None = None
    has_loaded: bool = False
    sessions: Sessions | None = None
    replay: Replay | None = None


class Lognormal(Section, frozen=True, kw_only=True):
    """Lengths in tokens: exp of a normal with this mean and sigma, rounded, plus `extra`."""

    mean: float
    sigma: NotNegative
    extra: Annotated[int, Meta(ge=0)] = 0


class Workload(Section, frozen=True, kw_only=True):
    """Requests for the copies of `model`, as popular as 1/rank^`exponent`.

    Lengths are those of `source`. With a `rate_per_s` arrivals are Gamma gaps with this `cv` for `minutes`;
    `bursts` are of all requests together, or each copy has its own. Without a rate the times are the source's
    too (`speed_up` times as fast, the first `minutes`). What is asked in the first `warm_up_minutes` is not
    counted. Requests of more than `max_tokens`, prompt and output, are left out of the lengths to draw from,
    and cut when they are replayed. Clients guess their outputs with an error of
    lognormal(0, `estimate_sigma`); without it they say nothing.
    """

    model: str
    source: Sources
    rate_per_s: Positive | None = None
    cv: NotNegative = 1.0
    bursts: Literal["together", "each"] = "together"
    minutes: Positive = 60.0
    warm_up_minutes: NotNegative = 0.0
    speed_up: Positive = 1.0
    max_tokens: Count = 2048
    exponent: NotNegative = 0.0
    prompts: Lognormal | None = None
    outputs: Lognormal | None = None
    estimate_sigma: NotNegative | None = None

    @property
    def warm_up_s(self) -> float:
        """Seconds at the beginning whose requests are not counted."""
        return self.warm_up_minutes * 60

    @property
    def counted_s(self) -> float:
        """Seconds after them."""
        return self.minutes * 60 - self.warm_up_s


class World(Section, frozen=True, kw_only=True):
    """What is left: clean-up of devices, the clients' time-out (inf: none), and how exactly it is simulated.

    A run ends `drain_minutes` after the last arrival. `grain` real tokens are one simulated token
    (`godwit.sim.coarse`). Links are `link_scale` times as quick as the machines say.
    """

    timeout_s: Positive = float("inf")
    cleanup_s: NotNegative = 0.0
    jitter_share: Share = 0.0
    lump_tokens: Count = 32
    drain_minutes: NotNegative = 30.0
    grain: Count = 1
    link_scale: Positive = 1.0


class Early(EarlySettings, frozen=True, forbid_unknown_fields=True):
    """When requests leave early (`godwit.scheduling.early.EarlySettings`)."""


class Head(Policies, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The head's settings (`godwit.sim.spec.Policies`), and what clients of a policy do.

    `num_replicas` of a request are sent. An idle instance is unloaded after `keep_alive_loads` times what
    loading it from SSD takes; without that and `keep_alive_s`, when its memory is needed.
    """

    early: Early | None = None
    num_replicas: Count = 1
    keep_alive_loads: Positive | None = None


class Published(Section, frozen=True, kw_only=True):
    """Figures of a paper for one row: the model, source and rate (None: any) of a workload, and a policy."""

    model: str
    source: Sources | None = None
    rate_per_s: float | None = None
    policy: str
    figures: dict[str, float]


class Ablations(Section, frozen=True, kw_only=True):
    """What is varied, one at a time, by the key that --set takes, under these policies (none: all)."""

    policies: tuple[str, ...] = ()
    keys: dict[str, list[Any]] = {}


class Scenario(Section, frozen=True, kw_only=True):
    """A scenario file.

    `policies` are the rows of the report: each has the head's settings that differ from `head`. `cases` are
    varied all with all, by the keys that --set takes; each combination is a workload of its own. `sweep` are
    constants that nobody knows, varied by --sweep. The first of `baselines` is what others are compared with:
    in a "fleet" report it is followed by the best possible one.
    """

    about: str
    report: Literal["contention", "fleet"]
    baselines: tuple[str, ...]
    models: dict[str, Model]
    machines: dict[str, Machine]
    workload: Workload
    world: World = World()
    head: dict[str, Any] = {}
    policies: dict[str, dict[str, Any]]
    slo: Slo = Slo()
    cases: dict[str, list[Any]] = {}
    sweep: dict[str, list[Any]] = {}
    ablations: Ablations = Ablations()
    published: tuple[Published, ...] = ()

    @property
    def end_s(self) -> float:
        """When a run ends, in seconds from its beginning."""
        return (self.workload.minutes + self.world.drain_minutes) * 60

"""What is simulated: hosts, workers, models, requests and how long each thing takes. Pure values.

A world is made of these and nothing else, so that equal specs and seeds give equal traces, byte for byte.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from godwit.scheduling.early import EarlySettings
from godwit.types import ModelName, Tier, WorkerId

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]

Knowledge = Literal["history", "lives", "leaving"]

GPU_JITTER_S = 0.6
"""Length of the rare outliers of cleaning up a device."""


class Rates(Struct, frozen=True):
    """How quick an instance is.

    A step that draws one token for each of n requests takes `decode_s[n - 1]` seconds; beyond the last value
    it grows as between the last two, or stays. Prompts are computed at `prefill_tps` tokens/s, in steps of at
    most `chunk_tokens`, which draw for the others as well.
    """

    decode_s: tuple[float, ...]
    prefill_tps: float
    chunk_tokens: int = 512


class ModelSpec(Struct, frozen=True):
    """A model: `checkpoint_bytes` are loaded, `device_bytes` hold weights and the KV of all slots."""

    name: ModelName
    checkpoint_bytes: int
    device_bytes: int
    context_tokens: int = 4096
    kv_bytes_per_token: int = 0


class HostSpec(Struct, frozen=True):
    """A machine with one or more workers, which share its tiers: each tier's way out is one FIFO queue.

    `bytes_per_s` by tier is that of the whole way to the device, by all nearer tiers. `dram_bytes` cache
    checkpoints, least recently used out first; `in_dram` are there at the start, the first of them soonest
    out. Its workers say that `emulated_tiers` are slowed to so many bytes/s each, so that the head need not
    learn it.
    """

    name: str
    bytes_per_s: Mapping[Tier, float]
    dram_bytes: int
    in_dram: tuple[ModelName, ...] = ()
    on_ssd: tuple[ModelName, ...] = ()
    emulated_tiers: tuple[tuple[Tier, float], ...] = ()


class Stay(Struct, frozen=True):
    """One session of a worker: from its joining until it is gone (`end_s`; inf: it stays).

    With a notice it is told `notice_s` before that it must go; 0: it vanishes without a word.
    """

    start_s: float
    end_s: float = float("inf")
    notice_s: float = 0.0


class Life(Struct, frozen=True):
    """How long a server stays and stays away: Weibull sessions (shape 1: exponential), exponential gaps.

    A shape below 1 is for servers that are likely to leave soon after they came, above 1 for those that wear
    out. With a notice they say `notice_s` before that they will leave.
    """

    scale_s: float
    shape: float = 1.0
    mean_gap_s: float = 0.0
    notice_s: float = 0.0


class WorkerSpec(Struct, frozen=True):
    """A worker: one device of `device_bytes` on a host, `slots` requests a model, a link to everybody.

    `loaded` are on the device when it joins; `rates` are for all its models, but those in `model_rates`. Its
    link carries `link_bytes_per_s` each way, with `delay_s` to anybody. `context_tokens` is the most that one
    request may have here, None: what the model says. From `life` its stays were drawn, None: from none.
    """

    name: WorkerId
    host: str
    device_bytes: int
    slots: int
    rates: Rates
    loaded: tuple[ModelName, ...] = ()
    model_rates: Mapping[ModelName, Rates] = {}
    link_bytes_per_s: float = float("inf")
    delay_s: float = 0.0005
    stays: tuple[Stay, ...] = (Stay(0.0),)
    kind: str = ""
    context_tokens: int | None = None
    life: Life | None = None


class Ask(Struct, frozen=True):
    """One request: it ends by itself after `num_output` tokens, which nobody is told.

    `expected_output` is what its client guesses, None where it does not. With `num_replicas` above 1 that
    many are sent, and the first that is complete is the answer.
    """

    at_s: float
    model: ModelName
    num_prompt: int
    num_output: int
    expected_output: float | None = None
    num_replicas: int = 1


class ClusterSpec(Struct, frozen=True):
    """The machines and what they can serve; every worker of a host may serve what is on the host."""

    hosts: tuple[HostSpec, ...]
    workers: tuple[WorkerSpec, ...]
    models: tuple[ModelSpec, ...]


class Policies(Struct, frozen=True):
    """What the head does: settings of the real one under the same names (`godwit.config`).

    Requests leave their servers `early` by those rules (None: they do not). How long servers stay is
    estimated from their history as a `family` of `costs.families`. Or it is known: from what `Life` each
    one's sessions are drawn, which no estimate can better, or even when it is leaving (the oracle).
    """

    policy: str = "live_migration"
    method: str = "tokens"
    keep_alive_s: NotNegative | None = None
    patience_s: NotNegative = 5.0
    placement_timeout_s: Positive = 300.0
    tick_s: Positive = 0.1
    early: EarlySettings | None = None
    family: str = "hierarchical"
    stall_s: NotNegative = 5.0
    knows: Knowledge = "history"
    dead_after_s: NotNegative = 5.0
    max_failovers: Annotated[int, Meta(ge=0)] = 5


class Run(Struct, frozen=True):
    """One simulation: it ends when all asks are answered, or at `end_s`.

    A request that is not complete `timeout_s` after it was asked is cancelled by its client. Device clean-up
    takes `cleanup_s`, and with probability `jitter_share` `GPU_JITTER_S` more.
    """

    cluster: ClusterSpec
    asks: tuple[Ask, ...]
    head: Policies
    seed: int
    end_s: float
    timeout_s: float = float("inf")
    cleanup_s: float = 0.0
    jitter_share: float = 0.0
    lump_tokens: int = 32

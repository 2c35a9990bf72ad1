"""A cluster's measured constants as a JSON file: written by whoever measures, read by whoever decides."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from godwit.costs.choice import ASSUMED_SERVER, MoveCosts
from godwit.costs.constants import Constant
from godwit.costs.crossover import MigrationCost, Server
from godwit.costs.kv import KvSize
from godwit.errors import ConfigError

ASSUMED_KV_BYTES_PER_TOKEN = Constant(128_000.0)


Name = Annotated[str, Meta(min_length=1)]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of all sections: an unknown key is an error."""


class BatchRates(_Section, frozen=True):
    """What one worker does with `batch` requests of a model at once: tokens/s of all of them together."""

    batch: int
    decode_tps: Constant
    prefill_tps: Constant | None = None


class ModelProfile(_Section, frozen=True):
    """One model on this hardware: prefill rate (tokens/s) and the size of its KV cache.

    `recompute_overhead_s` None means the profile's own. `prefill_loaded_tps` is the rate while the worker
    decodes for others too. `kv_points` are measured (tokens, bytes) of the most recent tokens, for a KV that
    is not linear; they then replace `kv_bytes_per_token`. While a destination prefills, a token of the moving
    request takes `source_slowdown` times its usual time at the source, and one of another request at the
    destination `destination_slowdown` times. ValueError where one of these is no possible rate or size.
    """

    prefill_tps: Constant
    recompute_overhead_s: Constant | None = None
    prefill_loaded_tps: Constant | None = None
    kv_bytes_per_token: Constant = ASSUMED_KV_BYTES_PER_TOKEN
    kv_points: tuple[tuple[float, float], ...] = ()
    batches: tuple[BatchRates, ...] = ()
    source_slowdown: Constant | None = None
    destination_slowdown: Constant | None = None

    def __post_init__(self) -> None:
        if self.prefill_tps.value == 0:
            raise ValueError("prefill_tps is above 0")
        _ = self.kv

    @property
    def kv(self) -> KvSize:
        """Bytes by range."""
        if self.kv_points:
            return KvSize.measured(self.kv_points)
        return KvSize.linear(self.kv_bytes_per_token.value)


class PairProfile(_Section, frozen=True):
    """The way from one worker to another: what a transfer takes in any case, and its effective bandwidth.

    `bandwidth_loaded_bytes_per_s` is that while both ends serve other requests. ValueError where one is 0.
    """

    source: str
    destination: str
    transfer_overhead_s: Constant
    bandwidth_bytes_per_s: Constant
    bandwidth_loaded_bytes_per_s: Constant | None = None

    def __post_init__(self) -> None:
        for bandwidth in (self.bandwidth_bytes_per_s, self.bandwidth_loaded_bytes_per_s):
            if bandwidth is not None and bandwidth.value == 0:
                raise ValueError("a bandwidth is above 0")


class Profile(_Section, frozen=True):
    """What is known about a cluster; the defaults are what is assumed of one that nobody has measured.

    `bandwidth_bytes_per_s` is the effective rate between two workers, None where it was not measured;
    `hardware` and `date` are for people. `models` and the constants beside them are of the whole cluster;
    `workers` (models by worker) and `pairs` say what differs, and win where they have an answer.
    """

    version: Literal[1] = 1
    hardware: str = ""
    date: str = ""
    transfer_overhead_s: Constant = Constant(0.5)
    recompute_overhead_s: Constant = Constant(0.2)
    bandwidth_bytes_per_s: Constant | None = None
    models: dict[Name, ModelProfile] = {}
    workers: dict[Name, dict[Name, ModelProfile]] = {}
    pairs: tuple[PairProfile, ...] = ()

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s.value == 0:
            raise ValueError("bandwidth_bytes_per_s is above 0")

    @property
    def cost(self) -> MigrationCost:
        """The overheads as the cost model takes them."""
        return MigrationCost(self.transfer_overhead_s.value, self.recompute_overhead_s.value)

    @property
    def move_costs(self) -> MoveCosts:
        """What each move's method is chosen from; a bandwidth that was not measured is assumed."""
        measured = self.bandwidth_bytes_per_s
        bandwidth = ASSUMED_SERVER.bandwidth_bytes_per_s if measured is None else measured.value
        servers = {name: Server(m.prefill_tps.value, bandwidth, m.kv) for name, m in self.models.items()}
        return MoveCosts(self.cost, servers)


def parse_profile(text: str | bytes) -> Profile:
    """A profile from JSON; ConfigError says what is wrong and where."""
    try:
        return msgspec.json.decode(text, type=Profile)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        key = path.rstrip("`").removeprefix("$").removeprefix(".") or "the profile"
        raise ConfigError(f"{key}: {what[:1].lower()}{what[1:]}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"not a profile in JSON: {error}") from error


def format_profile(profile: Profile) -> str:
    """The profile as indented JSON that `parse_profile` reads back unchanged."""
    # `version` is written although it is the default: a file must say what it is.
    fields = {"version": profile.version, **msgspec.to_builtins(profile)}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"


def read_profile(path: Path) -> Profile:
    """The profile in a file; ConfigError where it cannot be read or is wrong."""
    try:
        return parse_profile(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: the profile cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def write_profile(path: Path, profile: Profile) -> None:
    """Put the profile into a file, whole or not at all; ConfigError where it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(format_profile(profile), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: the profile cannot be written: {error.strerror}") from error

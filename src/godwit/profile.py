"""A cluster's measured constants as a JSON file: written by whoever measures, read by whoever decides."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from godwit.costs.constants import Constant
from godwit.costs.crossover import MigrationCost
from godwit.costs.known import (
    ASSUMED_BANDWIDTH_BYTES_PER_S,
    ASSUMED_KV_BYTES_PER_TOKEN,
    ASSUMED_RECOMPUTE_OVERHEAD_S,
    ASSUMED_TRANSFER_OVERHEAD_S,
    Constants,
    PairConstants,
    ServerConstants,
)
from godwit.costs.kv import KvSize
from godwit.costs.shipping import move_cost
from godwit.errors import ConfigError

Name = Annotated[str, Meta(min_length=1)]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of all sections: an unknown key is an error."""


class BatchRates(_Section, frozen=True):
    """What one worker does with `batch` requests of a model at once: tokens/s of all of them together."""

    batch: Annotated[int, Meta(ge=1)]
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
        for name in ("prefill_tps", "prefill_loaded_tps"):
            rate: Constant | None = getattr(self, name)
            if rate is not None and rate.value == 0:
                raise ValueError(f"{name} is above 0")
        _ = self.kv

    @property
    def kv(self) -> KvSize:
        """Bytes by range."""
        return KvSize.known(self.kv_bytes_per_token.value, self.kv_points)


class PairProfile(_Section, frozen=True):
    """The way from one worker to another: what a transfer takes in any case, and its effective bandwidth.

    `bandwidth_loaded_bytes_per_s` is that while both ends serve other requests. ValueError where one is 0, or
    both ends are the same worker.
    """

    source: Name
    destination: Name
    transfer_overhead_s: Constant
    bandwidth_bytes_per_s: Constant
    bandwidth_loaded_bytes_per_s: Constant | None = None

    def __post_init__(self) -> None:
        if self.source == self.destination:
            raise ValueError(f"a pair is two workers, not {self.source!r} twice")
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
    transfer_overhead_s: Constant = ASSUMED_TRANSFER_OVERHEAD_S
    recompute_overhead_s: Constant = ASSUMED_RECOMPUTE_OVERHEAD_S
    bandwidth_bytes_per_s: Constant | None = None
    models: dict[Name, ModelProfile] = {}
    workers: dict[Name, dict[Name, ModelProfile]] = {}
    pairs: tuple[PairProfile, ...] = ()

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s.value == 0:
            raise ValueError("bandwidth_bytes_per_s is above 0")
        seen: set[tuple[str, str]] = set()
        for pair in self.pairs:
            if (ends := (pair.source, pair.destination)) in seen:
                raise ValueError(f"pairs: from {pair.source!r} to {pair.destination!r} stands there twice")
            seen.add(ends)

    @property
    def cost(self) -> MigrationCost:
        """The overheads as the cost model takes them."""
        return move_cost(self.transfer_overhead_s.value, self.recompute_overhead_s.value)

    @property
    def constants(self) -> Constants:
        """What each move's method is chosen from (`godwit.costs.choice.MoveCosts`).

        A worker's model that has no overhead or KV size of its own takes the model's, then the cluster's.
        """
        models = {name: _server(one, None, self.recompute_overhead_s) for name, one in self.models.items()}
        workers = {
            (worker, name): _server(one, self.models.get(name), self.recompute_overhead_s)
            for worker, known in self.workers.items()
            for name, one in known.items()
        }
        pairs = {
            (pair.source, pair.destination): PairConstants(
                pair.transfer_overhead_s, pair.bandwidth_bytes_per_s, pair.bandwidth_loaded_bytes_per_s
            )
            for pair in self.pairs
        }
        pair = PairConstants(
            self.transfer_overhead_s, self.bandwidth_bytes_per_s or ASSUMED_BANDWIDTH_BYTES_PER_S
        )
        server = ServerConstants(recompute_overhead_s=self.recompute_overhead_s)
        return Constants(pair, server, models, workers, pairs)


def _server(
    own: ModelProfile, pooled: ModelProfile | None, recompute_overhead_s: Constant
) -> ServerConstants:
    pooled = own if pooled is None else pooled
    has_kv = bool(own.kv_points) or own.kv_bytes_per_token != ASSUMED_KV_BYTES_PER_TOKEN
    sized = own if has_kv else pooled
    return ServerConstants(
        own.prefill_tps,
        own.recompute_overhead_s or pooled.recompute_overhead_s or recompute_overhead_s,
        own.prefill_loaded_tps,
        sized.kv_bytes_per_token,
        sized.kv_points,
        _token_s(own),
    )


def _token_s(own: ModelProfile) -> Constant | None:
    """Seconds a token of a request that is alone; None where nobody measured that."""
    alone = next((one.decode_tps.value for one in own.batches if one.batch == 1), None)
    return None if alone is None else Constant(1 / alone)


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

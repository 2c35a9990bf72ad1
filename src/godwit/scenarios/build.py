"""From a scenario, a policy and a seed to a run; its asks and sessions are the same for all policies."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator

from godwit.scenarios.read import head_of
from godwit.scenarios.schema import Head, Machine, Model, Scenario, Workload
from godwit.sim.sessions import Change, changes_of, cut, draw_stays, lose_together, replay_changes
from godwit.sim.spec import (
    Ask,
    ClusterSpec,
    HostSpec,
    Life,
    ModelSpec,
    Policies,
    Rates,
    Run,
    Stay,
    WorkerSpec,
)
from godwit.sim.workload import (
    Floats,
    Ints,
    arrivals_each_s,
    arrivals_s,
    choices,
    estimates,
    lengths,
    make_asks,
    popularity,
    replicate,
    sampled,
)
from godwit.traces import SPOT, lengths_named, trace_named
from godwit.types import ModelName, Tier, WorkerId

GB = 1e9


class Stream(IntEnum):
    """What is drawn from a stream of its own, so that a change of one leaves the others as they are."""

    TIMES = 0
    MODELS = 1
    TOKENS = 2
    ESTIMATES = 3
    MACHINES = 4


class _Places(Struct, frozen=True):
    """What all machines of a scenario share."""

    scenario: Scenario
    model: Model
    names: tuple[ModelName, ...]
    device_bytes: int


def build(scenario: Scenario, policy: str, seed: int, data: Path) -> Run:
    """One run, not yet coarse. ConfigError where a data set is missing in `data`."""
    world = scenario.world
    head = head_of(scenario, policy)
    return Run(
        cluster=_cluster(scenario, seed, data),
        asks=_asks(scenario, head.num_replicas, seed, data),
        head=_settings(scenario, head),
        seed=seed,
        end_s=scenario.end_s,
        timeout_s=world.timeout_s,
        cleanup_s=world.cleanup_s,
        jitter_share=world.jitter_share,
        lump_tokens=world.lump_tokens,
    )


def _rng(seed: int, stream: Stream, *more: int) -> Generator:
    return np.random.default_rng((seed, stream, *more))


def _names(workload: Workload, model: Model) -> tuple[ModelName, ...]:
    """The copies, the most popular first."""
    if model.copies == 1:
        return (ModelName(workload.model),)
    return tuple(ModelName(f"{workload.model}-{number + 1}") for number in range(model.copies))


def _settings(scenario: Scenario, head: Head) -> Policies:
    fields = {name: getattr(head, name) for name in Policies.__struct_fields__}
    if head.keep_alive_loads is not None:
        slowest = min(machine.ssd_gb_per_s for machine in scenario.machines.values())
        load_s = scenario.models[scenario.workload.model].checkpoint_gb / slowest
        fields["keep_alive_s"] = head.keep_alive_loads * load_s
    return Policies(**fields)


# --- requests ---------------------------------------------------------------------------------------------


def _asks(scenario: Scenario, num_replicas: int, seed: int, data: Path) -> tuple[Ask, ...]:
    workload = scenario.workload
    model = scenario.models[workload.model]
    names = _names(workload, model)
    times_s, tokens = _load(workload, seed, data)
    chosen = choices(_rng(seed, Stream.MODELS), popularity(model.copies, workload.exponent), len(times_s))
    if workload.rate_per_s is not None and workload.bursts == "each":
        each_s = arrivals_each_s(_rng(seed, Stream.TIMES), chosen, workload.cv, workload.minutes * 60)
        order = np.argsort(each_s, kind="stable")
        times_s, chosen = each_s[order], chosen[order]
    expected = None
    if workload.estimate_sigma is not None:
        expected = estimates(_rng(seed, Stream.ESTIMATES), tokens[:, 1], workload.estimate_sigma)
    return make_asks(times_s, [names[number] for number in chosen], tokens, expected, num_replicas)


def _load(workload: Workload, seed: int, data: Path) -> tuple[Floats, Ints]:
    """When requests come, and their lengths."""
    seconds = workload.minutes * 60
    if workload.rate_per_s is None:
        trace = trace_named(workload.source, data)
        times_s = trace.times_s / workload.speed_up
        is_in = times_s < seconds
        return times_s[is_in], _cut(trace.tokens[is_in], workload.max_tokens)
    times_s = arrivals_s(_rng(seed, Stream.TIMES), workload.rate_per_s, workload.cv, seconds)
    rng = _rng(seed, Stream.TOKENS)
    if workload.prompts is not None and workload.outputs is not None:
        drawn = [
            lengths(rng, len(times_s), np.exp(kind.mean), kind.sigma, 1, workload.max_tokens) + kind.extra
            for kind in (workload.prompts, workload.outputs)
        ]
        return times_s, _cut(np.stack(drawn, axis=1), workload.max_tokens)
    rows = lengths_named(workload.source, data)
    return times_s, sampled(rng, rows[rows.sum(axis=1) <= workload.max_tokens], len(times_s))


def _cut(tokens: Ints, most: int) -> Ints:
    """Prompts and outputs of one token at least, and of so many at most together."""
    prompts = np.clip(tokens[:, 0], 1, most - 1)
    return np.stack([prompts, np.clip(tokens[:, 1], 1, most - prompts)], axis=1)


# --- machines ---------------------------------------------------------------------------------------------


def _cluster(scenario: Scenario, seed: int, data: Path) -> ClusterSpec:
    model = scenario.models[scenario.workload.model]
    # A model has its devices alone: it fills the smallest ones.
    device_gb = min(machine.device_gb for machine in scenario.machines.values())
    places = _Places(scenario, model, _names(scenario.workload, model), round(device_gb * model.devices * GB))
    hosts: list[HostSpec] = []
    workers: list[WorkerSpec] = []
    for number, (kind, machine) in enumerate(scenario.machines.items()):
        rng = _rng(seed, Stream.MACHINES, number)
        stays, lives = _stays(rng, kind, machine, scenario, data)
        hosts += _hosts(places, machine, tuple(stays))
        for name, own in stays.items():
            each = _workers(places, kind, machine, name, own, rng)
            workers += [replace(worker, life=lives.get(name)) for worker in each]
    specs = tuple(
        ModelSpec(
            name,
            round(model.checkpoint_gb * GB),
            places.device_bytes,
            model.context_tokens,
            model.kv_bytes_per_token,
        )
        for name in places.names
    )
    return ClusterSpec(tuple(hosts), tuple(workers), specs)


def _stays(
    rng: Generator, kind: str, machine: Machine, scenario: Scenario, data: Path
) -> tuple[Mapping[str, tuple[Stay, ...]], Mapping[str, Life]]:
    """When each machine of a kind is there, by its name, and what that was drawn from, if it was."""
    if machine.replay is not None:
        lines = SPOT[machine.replay.trace](data)
        changes = [line for line in lines if isinstance(line, Change)]
        counts = [line for line in lines if not isinstance(line, Change)]
        recorded = replay_changes(changes or changes_of(rng, counts))
        left = {
            f"{kind}-{node}": cut(sessions, machine.replay.from_s, machine.replay.notice_s)
            for node, sessions in recorded.items()
        }
        return {name: sessions for name, sessions in left.items() if sessions}, {}
    names = [f"{kind}-{number + 1}" for number in range(machine.count)]
    if (own := machine.sessions) is None:
        return {name: (Stay(0.0),) for name in names}, {}
    stays, lives = {}, {}
    for name in names:
        scale_s = own.scale_s * float(rng.uniform(own.scale_low, own.scale_high))
        lives[name] = Life(scale_s, own.shape, own.mean_gap_s, own.notice_s)
        stays[name] = draw_stays(rng, lives[name], scenario.end_s)
    return lose_together(rng, stays, own.together), lives


def _hosts(places: _Places, machine: Machine, names: Sequence[str]) -> list[HostSpec]:
    """Copies on SSD and in DRAM go by popularity, over the machines of a kind."""
    shares = popularity(places.model.copies, places.scenario.workload.exponent)
    room = [int(size_gb // places.model.checkpoint_gb) for size_gb in (machine.ssd_gb, machine.dram_gb)]
    on_ssd, in_dram = (replicate(shares, len(names), models) for models in room)
    bytes_per_s = {
        Tier.DRAM: machine.dram_gb_per_s * GB,
        Tier.SSD: machine.ssd_gb_per_s * GB,
        Tier.REMOTE: machine.remote_gb_per_s * GB,
    }
    return [
        HostSpec(
            name,
            bytes_per_s,
            round(machine.dram_gb * GB),
            in_dram=tuple(places.names[model] for model in in_dram[number]),
            on_ssd=tuple(places.names[model] for model in on_ssd[number]),
        )
        for number, name in enumerate(names)
    ]


def _workers(
    places: _Places, kind: str, machine: Machine, host: str, stays: tuple[Stay, ...], rng: Generator
) -> list[WorkerSpec]:
    model, scale = places.model, places.scenario.world.link_scale
    speed = float(rng.uniform(machine.speed_low, machine.speed_high))
    count = machine.devices // model.devices
    return [
        WorkerSpec(
            WorkerId(host if count == 1 else f"{host}-gpu{number + 1}"),
            host,
            device_bytes=round(machine.device_gb * model.devices * GB),
            slots=machine.slots,
            rates=_rates(machine, model, speed),
            loaded=places.names[:1] if machine.has_loaded else (),
            link_bytes_per_s=machine.link_mb_per_s * 1e6 * scale,
            delay_s=machine.delay_ms / 1e3,
            stays=stays,
            kind=kind,
            context_tokens=machine.context_tokens,
        )
        for number in range(count)
    ]


def _rates(machine: Machine, model: Model, speed: float) -> Rates:
    """The machine's own where it says them, else the model's; `speed` times as quick."""
    if machine.decode_tps is not None:
        decode_s: tuple[float, ...] = (1 / machine.decode_tps,)
    else:
        decode_s = tuple(milliseconds / 1e3 for milliseconds in model.decode_ms or ())
    prefill_tps = machine.prefill_tps or model.prefill_tps or 0.0
    return Rates(tuple(seconds / speed for seconds in decode_s), prefill_tps * speed)

"""`godwit bench sim`: how quick the simulator is, by the size of the cluster."""

import gc
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from godwit.sim.cluster import simulate
from godwit.sim.coarse import coarsen
from godwit.sim.spec import Ask, ClusterSpec, HostSpec, ModelSpec, Policies, Rates, Run, WorkerSpec
from godwit.sim.workload import arrivals_s, choices, lengths, make_asks, popularity
from godwit.types import ModelName, Tier, WorkerId

SIZES = (10, 100, 1000)
REPLICAS = 4
SLOTS = 4
UTILISATION = 0.5
POPULARITY_EXPONENT = 0.3
GB = 1_000_000_000
RATES = Rates((0.02, 0.021, 0.022, 0.024), 5000.0)
PROMPTS = (200, 0.8, 10, 2000)
OUTPUTS = (150, 0.8, 10, 2000)
DRAIN_S = 600.0


class SimulatorOptions(Struct, frozen=True):
    """Clusters up to `servers`, `requests` in each, `repeat` times; a simulated token stands for `grain`."""

    servers: int = 1000
    requests: int = 20_000
    grain: int = 16
    repeat: int = 3
    seed: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of servers, smallest first."""
        return (*(size for size in SIZES if size < self.servers), self.servers)


class SimulatorRow(Struct, frozen=True):
    """One size: medians over the repeats, in seconds of this process's CPU time; low and high are the range.

    `virtual_over_cpu` is how much faster than its clock the simulated cluster runs. `problems` must be 0.
    """

    servers: int
    requests: int
    grain: int
    events_per_s: float
    requests_per_s: float
    requests_per_s_low: float
    requests_per_s_high: float
    cpu_s: float
    virtual_over_cpu: float
    events_per_request: float
    problems: int


class SimulatorReport(Struct, frozen=True):
    """All rows, smallest cluster first."""

    rows: tuple[SimulatorRow, ...]


class _Measured(Struct, frozen=True):
    cpu_s: float
    virtual_s: float
    num_events: int
    num_problems: int


def run_simulator(options: SimulatorOptions, progress: Callable[[str], None]) -> SimulatorReport:
    """Simulate every size."""
    rows = []
    for servers in options.sizes:
        measured = []
        for turn in range(options.repeat):
            progress(f"{servers} servers, {turn + 1} of {options.repeat}")
            measured.append(_measure(options, servers, options.seed + turn))
        rows.append(_row(options, servers, measured))
    return SimulatorReport(tuple(rows))


def make_run(servers: int, requests: int, seed: int) -> Run:
    """Servers of four slots a model, half of which are in use; as many models, each on four servers."""
    rng = np.random.default_rng(seed)
    models = tuple(ModelSpec(ModelName(f"m{i}"), 13 * GB, 20 * GB) for i in range(servers))
    names = [model.name for model in models]
    hosts, workers = [], []
    for number in range(servers):
        held = tuple(dict.fromkeys(names[(number + k * 7) % servers] for k in range(REPLICAS)))
        host = f"h{number}"
        bytes_per_s = {Tier.DRAM: 20.0 * GB, Tier.SSD: 5.0 * GB, Tier.REMOTE: 1.0 * GB}
        hosts.append(HostSpec(host, bytes_per_s, 60 * GB, held, held))
        workers.append(
            WorkerSpec(WorkerId(f"w{number}"), host, 80 * GB, SLOTS, RATES, held, link_bytes_per_s=1.25 * GB)
        )
    asks = _asks(rng, names, servers, requests)
    cluster = ClusterSpec(tuple(hosts), tuple(workers), models)
    end_s = asks[-1].at_s + DRAIN_S
    return Run(cluster, asks, Policies(tick_s=1.0), seed, end_s, lump_tokens=512)


def _asks(rng: Generator, names: list[ModelName], servers: int, requests: int) -> tuple[Ask, ...]:
    outputs = lengths(rng, requests, *OUTPUTS)
    prompts = lengths(rng, requests, *PROMPTS)
    # A model's slots are filled on the way: what one request takes at the rate of two at once.
    busy_s = float(outputs.mean()) * RATES.decode_s[1]
    rate = UTILISATION * servers * SLOTS / busy_s
    times = arrivals_s(rng, rate, 1.0, requests / rate)
    chosen = choices(rng, popularity(len(names), POPULARITY_EXPONENT), len(times))
    return make_asks(times, [names[model] for model in chosen], np.stack([prompts, outputs], axis=1))


def _measure(options: SimulatorOptions, servers: int, seed: int) -> _Measured:
    run = coarsen(make_run(servers, options.requests, seed), options.grain)
    # What was made before stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    start_s = time.process_time()
    outcome = simulate(run)
    cpu_s = time.process_time() - start_s
    gc.unfreeze()
    problems = sum(answer.problem is not None for answer in outcome.answers)
    return _Measured(cpu_s, outcome.end_s, outcome.num_events, problems)


def _row(options: SimulatorOptions, servers: int, measured: list[_Measured]) -> SimulatorRow:
    speeds = [options.requests / one.cpu_s for one in measured]
    return SimulatorRow(
        servers=servers,
        requests=options.requests,
        grain=options.grain,
        events_per_s=round(median(one.num_events / one.cpu_s for one in measured), 1),
        requests_per_s=round(median(speeds), 1),
        requests_per_s_low=round(min(speeds), 1),
        requests_per_s_high=round(max(speeds), 1),
        cpu_s=round(median(one.cpu_s for one in measured), 2),
        virtual_over_cpu=round(median(one.virtual_s / one.cpu_s for one in measured), 1),
        events_per_request=round(median(one.num_events for one in measured) / options.requests, 1),
        problems=sum(one.num_problems for one in measured),
    )

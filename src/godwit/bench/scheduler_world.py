"""A synthetic cluster that answers the scheduler's decisions in virtual time. Pure.

Each model is on the SSD of some servers and in the DRAM of one or two of them; few are so popular that they
are always loaded, most are seldom asked for. Nothing fails here: what is measured is placement.
"""

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator

from godwit.costs.startup import StartupTimes
from godwit.scheduling import events
from godwit.sim.workload import choices, lengths, popularity
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, Tier, WorkerId

UNIT_BYTES = 20_000_000_000
DEVICE_UNITS = 4
MAX_MODEL_UNITS = 2
MAX_SLOTS = 4
WEIGHTS_SHARE = 0.75
POPULARITY_EXPONENT = 0.5
BYTES_PER_S = {Tier.DRAM: 10e9, Tier.SSD: 1.5e9}
NOISE = 0.2

TOKEN_S = 0.03
OUTPUT_TOKENS = (300, 0.8, 10, 4000)
PROMPT_TOKENS = (500, 1.0, 10, 20_000)
TRIP_S = 0.01
TICK_S = 0.1
PATIENCE_S = 120.0
DRAWN_AHEAD = 4096

Handle = Callable[[events.Event, float], list[events.Decision]]


class Shape(Struct, frozen=True):
    """How large the cluster is, and how many requests are in it, waiting or running, for each server."""

    servers: int
    models: int
    replicas: int
    requests_per_server: float


class _Server(Struct):
    """One server as it is; `free_s` is when each tier's way is next free, `in_dram` oldest first."""

    id: WorkerId
    slots: int
    models: dict[ModelName, ModelInfo]
    in_dram: list[ModelName]
    dram_models: int
    free_s: dict[Tier, float]
    ready_s: dict[ModelName, float]


class _Life(Struct):
    """A request; `turn` counts what has happened to it, so that what no longer holds can be told."""

    model: ModelName
    num_prompt: int
    remaining_s: float
    turn: int = 0
    worker: WorkerId | None = None
    since_s: float = 0.0


class World:
    """A cluster of this shape. `handle` is the scheduler's; `times` learns from what happens here."""

    def __init__(self, shape: Shape, rng: Generator, handle: Handle, times: StartupTimes) -> None:
        self._rng = rng
        self._handle = handle
        self._times = times
        self._shape = shape
        self._names = [ModelName(f"m{number}") for number in range(shape.models)]
        self._shares = popularity(shape.models, POPULARITY_EXPONENT)
        self._servers = _servers(shape, self._names, rng)
        self._requests: dict[RequestId, _Life] = {}
        self._heap: list[tuple[float, int, Callable[[], events.Event | None]]] = []
        self._seq = count()
        self._ids = count()
        self._drawn: list[tuple[int, int, int]] = []
        self._now = 0.0
        self.num_queued = 0
        self.num_rejected = 0

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    @property
    def num_waiting(self) -> int:
        """Requests that have no worker."""
        return sum(life.worker is None for life in self._requests.values())

    def begin(self) -> None:
        """All servers join, and the first requests are on their way."""
        for server in self._servers.values():
            joined = events.WorkerJoined(
                server.id, 1, server.slots, DEVICE_UNITS * UNIT_BYTES, tuple(server.models.values())
            )
            self._handle(joined, 0.0)
        for _ in range(round(self._shape.requests_per_server * self._shape.servers)):
            self._arrive(float(self._rng.uniform(0, 10)))
        self._later(TICK_S, self._tick)

    def run(self, num_queued: int) -> None:
        """Go on until so many more requests have been queued."""
        end = self.num_queued + num_queued
        while self.num_queued < end:
            self._now, _, make = heapq.heappop(self._heap)
            event = make()
            if event is None:
                continue
            self.num_queued += isinstance(event, events.RequestQueued)
            for decision in self._handle(event, self._now):
                self._answer(decision)

    # --- what is decided ------------------------------------------------------------------------------------

    def _answer(self, decision: events.Decision) -> None:
        match decision:
            case events.Start(request, worker):
                self._start(request, worker)
            case events.Load(worker, model):
                self._load(self._servers[worker], model)
            case events.Unload(worker, model):
                self._later(TRIP_S, lambda: self._changed(worker, model, is_loaded=False))
            case events.Move(request, _, destination):
                self._move(request, destination)
            case events.Interrupt(request, worker):
                self._interrupt(request, worker)
            case events.Reject(request):
                self.num_rejected += 1
                del self._requests[request]
                self._arrive(0.0)

    def _start(self, request: RequestId, worker: WorkerId) -> None:
        life = self._requests[request]
        life.turn += 1
        life.worker, life.since_s = worker, self._now
        turn = life.turn
        self._later(TRIP_S, lambda: self._accepted(request, turn))
        self._later(life.remaining_s, lambda: self._ended(request, turn))

    def _load(self, server: _Server, model: ModelName) -> None:
        info = server.models[model]
        begin_s = max(self._now, server.free_s.get(info.tier, 0.0))
        seconds = info.checkpoint_bytes / BYTES_PER_S[info.tier] * self._noise()
        end_s = begin_s + seconds
        server.free_s[info.tier] = server.ready_s[model] = end_s
        record = LoadRecord(info.tier, info.checkpoint_bytes, begin_s - self._now, seconds)
        self._later(end_s - self._now, lambda: self._loaded(server, model, record))

    def _move(self, request: RequestId, destination: WorkerId) -> None:
        life = self._requests[request]
        ready_s = self._servers[destination].ready_s.get(life.model, 0.0)
        tokens = self._num_tokens(life)
        seconds = self._times.resume_s(destination, life.model, tokens) * self._noise()
        turn = life.turn
        self._later(
            max(0.0, ready_s - self._now) + seconds,
            lambda: self._moved(request, turn, destination, tokens, seconds),
        )

    def _interrupt(self, request: RequestId, worker: WorkerId) -> None:
        life = self._requests[request]
        life.turn += 1
        life.remaining_s -= self._now - life.since_s
        life.worker = None
        queued = events.RequestQueued(
            request, life.model, self._now + PATIENCE_S, frozenset((worker,)), has_started=True
        )
        self._later(0.0, lambda: queued)

    # --- what happens ---------------------------------------------------------------------------------------

    def _tick(self) -> events.Event:
        self._later(TICK_S, self._tick)
        return events.Tick()

    def _arrive(self, after_s: float) -> None:
        model, num_prompt, num_output = self._draw()
        request = RequestId(f"r{next(self._ids)}")
        self._requests[request] = _Life(self._names[model], num_prompt, num_output * TOKEN_S)
        deadline = self._now + after_s + PATIENCE_S
        queued = events.RequestQueued(request, self._names[model], deadline)
        self._later(after_s, lambda: queued)

    def _accepted(self, request: RequestId, turn: int) -> events.Event | None:
        life = self._requests.get(request)
        if life is None or life.turn != turn:
            return None
        return events.RequestAccepted(request, life.num_prompt)

    def _ended(self, request: RequestId, turn: int) -> events.Event | None:
        life = self._requests.get(request)
        if life is None or life.turn != turn or life.worker is None:
            return None
        seconds = self._now - life.since_s
        self._times.learn_tokens(life.worker, life.model, max(1, round(seconds / TOKEN_S)), seconds)
        del self._requests[request]
        self._arrive(0.0)
        return events.RequestEnded(request)

    def _moved(
        self, request: RequestId, turn: int, destination: WorkerId, tokens: int, seconds: float
    ) -> events.Event | None:
        life = self._requests.get(request)
        if life is None or life.turn != turn:
            return None
        life.worker = destination
        self._times.learn_resume(destination, life.model, tokens, None, seconds)
        return events.MoveEnded(request, destination, self._num_tokens(life))

    def _loaded(self, server: _Server, model: ModelName, record: LoadRecord) -> events.Event:
        self._times.learn_load(server.id, record)
        if record.tier is not Tier.DRAM:
            server.in_dram.append(model)
            if len(server.in_dram) > server.dram_models:
                gone = server.in_dram.pop(0)
                self._later(0.0, lambda: self._changed(server.id, gone, tier=Tier.SSD))
        return self._changed(server.id, model, is_loaded=True, tier=Tier.DRAM, record=record)

    def _changed(
        self,
        worker: WorkerId,
        model: ModelName,
        *,
        is_loaded: bool | None = None,
        tier: Tier | None = None,
        record: LoadRecord | None = None,
    ) -> events.Event:
        models = self._servers[worker].models
        info = models[model]
        models[model] = replace(
            info,
            is_loaded=info.is_loaded if is_loaded is None else is_loaded,
            tier=info.tier if tier is None else tier,
        )
        return events.ModelChanged(worker, models[model], load=record)

    def _num_tokens(self, life: _Life) -> int:
        return life.num_prompt + round((self._now - life.since_s) / TOKEN_S)

    def _later(self, after_s: float, make: Callable[[], events.Event | None]) -> None:
        heapq.heappush(self._heap, (self._now + after_s, next(self._seq), make))

    def _noise(self) -> float:
        return float(self._rng.uniform(1 - NOISE, 1 + NOISE))

    def _draw(self) -> tuple[int, int, int]:
        """A request's model, and its tokens of prompt and output."""
        if not self._drawn:
            models = choices(self._rng, self._shares, DRAWN_AHEAD)
            prompts = lengths(self._rng, DRAWN_AHEAD, *PROMPT_TOKENS)
            outputs = lengths(self._rng, DRAWN_AHEAD, *OUTPUT_TOKENS)
            self._drawn = list(zip(models.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
        return self._drawn.pop()


def _servers(shape: Shape, names: list[ModelName], rng: Generator) -> dict[WorkerId, _Server]:
    """Every model on its servers' SSDs and in one or two DRAMs; devices are full of the most popular ones."""
    ids = [WorkerId(f"s{number}") for number in range(shape.servers)]
    holds: list[list[int]] = [[] for _ in ids]
    in_dram: list[list[ModelName]] = [[] for _ in ids]
    units = rng.integers(1, MAX_MODEL_UNITS + 1, shape.models)
    num_dram = rng.integers(1, 3, shape.models)
    for model, name in enumerate(names):
        holders = rng.choice(shape.servers, min(shape.replicas, shape.servers), replace=False)
        for server in holders:
            holds[server].append(model)
        for server in holders[: num_dram[model]]:
            in_dram[server].append(name)
    slots = rng.integers(1, MAX_SLOTS + 1, shape.servers)
    servers = {}
    for number, worker in enumerate(ids):
        near = in_dram[number]
        models = _infos(holds[number], names, units, frozenset(near))
        servers[worker] = _Server(worker, int(slots[number]), models, near, max(4, len(near)), {}, {})
    return servers


def _infos(
    held: list[int], names: list[ModelName], units: np.ndarray, in_dram: frozenset[ModelName]
) -> dict[ModelName, ModelInfo]:
    infos = {}
    free = DEVICE_UNITS
    for model in held:  # the most popular first
        name, size = names[model], int(units[model])
        is_loaded = size <= free
        free -= size if is_loaded else 0
        infos[name] = ModelInfo(
            name,
            name,
            32_768,
            size * UNIT_BYTES,
            is_loaded,
            True,
            int(size * UNIT_BYTES * WEIGHTS_SHARE),
            Tier.DRAM if name in in_dram else Tier.SSD,
        )
    return infos

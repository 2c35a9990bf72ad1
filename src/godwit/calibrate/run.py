"""Doing what a plan says, on a running cluster."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise, permutations
from statistics import fmean

from godwit.calibrate.cluster import FIRST_TOKEN_S, Cluster, Held
from godwit.calibrate.measured import DecodeSample, Measurements, MoveSample, PrefillSample, PromptSample
from godwit.calibrate.plan import (
    DECODE_PROMPT_TOKENS,
    WARM_UP_TOKENS,
    DecodeStep,
    Effort,
    MovesStep,
    Plan,
    PrefillStep,
    PromptStep,
    Step,
    WarmUp,
)
from godwit.errors import GodwitError, LinkError, UnauthorizedError
from godwit.protocol.entry import MoveRecord
from godwit.types import Phases

OnStep = Callable[[str, int, int], None]
"""What is measured now, how many steps are done, of how many."""

MIN_GAPS = 2
_CALM_TOKENS = 3
_PREFILL_ROOM = 16
_SKIPPED_STEPS = 2
_POLL_S = 0.02


class Calibration:
    """Measures step by step; what fails is a warning, unless the head is out of reach or refuses the key."""

    def __init__(self, cluster: Cluster, effort: Effort, on_step: OnStep) -> None:
        self._cluster = cluster
        self._effort = effort
        self._on_step = on_step
        self._without_kv: set[tuple[str, str, str]] = set()
        self.found = Measurements()

    async def run(self, plan: Plan) -> Measurements:
        """All steps."""
        self.found.warnings += plan.warnings
        for done, step in enumerate(plan.steps):
            self._on_step(str(step), done, len(plan.steps))
            try:
                await self._do(step)
            except (LinkError, UnauthorizedError):
                raise
            except GodwitError as error:
                self._warn(f"{step}: {error.message}")
        self._on_step("done", len(plan.steps), len(plan.steps))
        return self.found

    async def _do(self, step: Step) -> None:
        match step:
            case WarmUp():
                await self._warm_up(step)
            case MovesStep():
                await self._moves(step)
            case PromptStep():
                held = await self._opened(step.model, step.context_tokens, 1 + _PREFILL_ROOM)
                await self._cluster.close(held)
            case DecodeStep():
                await self._decode(step)
            case PrefillStep():
                await self._prefill(step)

    def _warn(self, text: str) -> None:
        if text not in self.found.warnings:
            self.found.warnings.append(text)

    async def _opened(self, model: str, prompt_tokens: int, max_tokens: int) -> Held:
        """A stream that was sent alone: its first token is a measurement."""
        held = await self._cluster.open(model, prompt_tokens, max_tokens)
        first_s = held.timed.times_s[0] - held.sent_s
        self.found.prompts.append(PromptSample(model, held.worker, prompt_tokens, first_s))
        return held

    # --- moves ----------------------------------------------------------------------------------------------

    async def _warm_up(self, step: WarmUp) -> None:
        held = await self._cluster.open(step.model, WARM_UP_TOKENS, step.max_tokens, step.first)
        try:
            for method in ("tokens", "kv"):
                for to in (step.second, step.first):
                    await held.has(held.num + _CALM_TOKENS)
                    await self._try_out(held, to, method)
        finally:
            await self._cluster.close(held)

    async def _try_out(self, held: Held, to: str, method: str) -> None:
        """A move that is not measured, but shows whether KV can be shipped."""
        source = held.worker
        record = await self._cluster.move(held, to, method)
        if method == "kv" and record.kv_problem is not None:
            self._without_kv.add((held.model, source, to))
            self._warn(
                f"{held.model}: no KV can be shipped from {source} to {to} ({record.kv_problem}): what a "
                "transfer takes stays assumed there"
            )

    async def _moves(self, step: MovesStep) -> None:
        held = await self._opened(step.model, step.context_tokens, step.max_tokens)
        try:
            if held.worker not in (step.first, step.second):
                await self._cluster.move(held, step.first, "tokens")
            await self._trips(step, held, None)
            if step.has_load:
                async with self._load(step) as load:
                    await self._trips(step, held, load)
        finally:
            await self._cluster.close(held)

    async def _trips(self, step: MovesStep, held: Held, load: "Load | None") -> None:
        methods = ["kv"] * self._effort.kv_trips + ["tokens"] * self._effort.token_trips
        without_kv = {
            ends
            for ends in permutations((step.first, step.second))
            if (step.model, *ends) in self._without_kv
        }
        for method in methods:
            if method == "kv" and len(without_kv) == 2:
                continue
            for _ in range(2):
                to = step.second if held.worker == step.first else step.first
                has_no_kv = (held.worker, to) in without_kv
                await self._measure(held, to, "tokens" if has_no_kv else method, load)

    async def _measure(self, held: Held, to: str, method: str, load: "Load | None") -> None:
        """One move, once everything decodes calmly again."""
        calm = self._effort.before_tokens if method == "tokens" else _CALM_TOKENS
        streams = [held] if load is None else [held, *await load.refreshed()]
        for stream in streams:
            await stream.has(stream.num + calm)
        source, start_s = held.worker, time.monotonic()
        record = await self._cluster.move(held, to, method)
        if any(stream.is_over for stream in streams[1:]):
            self._warn(
                f"{held.model}: a request that was to be load ended during a move, which does not count"
            )
            return
        beside = None if load is None else load.on(to)
        sample = _move_sample(held, source, record, is_loaded=load is not None)
        if method == "tokens" and sample.ready_s is not None:
            window = (start_s, start_s + sample.ready_s, self._effort.before_tokens)
            sample = MoveSample(
                **{f: getattr(sample, f) for f in sample.__struct_fields__ if not f.endswith("_ratio")},
                source_ratio=_ratio(held, *window),
                destination_ratio=None if beside is None else _ratio(beside, *window),
            )
        self.found.moves.append(sample)

    @contextlib.asynccontextmanager
    async def _load(self, step: MovesStep) -> "AsyncIterator[Load]":
        load = Load(self._cluster, step, {})
        try:
            yield load
        finally:
            await self._cluster.close(*load.streams.values())

    # --- rates by batch size --------------------------------------------------------------------------------

    async def _decode(self, step: DecodeStep) -> None:
        """Other workers are idle meanwhile, except for a moment when a request starts there."""
        streams: list[Held] = []
        try:
            for batch in range(1, max(step.batches) + 1):
                streams.append(
                    await self._cluster.open(step.model, DECODE_PROMPT_TOKENS, step.max_tokens, step.worker)
                )
                if batch in step.batches:
                    steps_s = await self._steps_s(streams)
                    self.found.decodes.append(DecodeSample(step.model, step.worker, batch, steps_s))
        finally:
            await self._cluster.close(*streams)

    async def _steps_s(self, streams: list[Held]) -> tuple[float, ...]:
        """The seconds of the next steps: each the mean over the streams' gaps, as all take part in it."""
        starts = [stream.num + _SKIPPED_STEPS for stream in streams]
        num = self._effort.decode_steps
        for stream, start in zip(streams, starts, strict=True):
            await stream.has(start + num)
        gaps = [s.timed.gaps_s(start, start + num) for s, start in zip(streams, starts, strict=True)]
        return tuple(fmean(step) for step in zip(*gaps, strict=True))

    async def _prefill(self, step: PrefillStep) -> None:
        """Who got how many is the head's choice, so it is looked up."""
        streams = [
            self._cluster.send(step.model, step.prompt_tokens, _PREFILL_ROOM) for _ in range(step.num_prompts)
        ]
        workers: dict[str, str] = {}
        firsts = asyncio.gather(*(stream.has(1, FIRST_TOKEN_S) for stream in streams))
        try:
            while not firsts.done():
                workers |= await self._cluster.owners()
                await asyncio.wait((firsts,), timeout=_POLL_S)
            await firsts
            workers |= await self._cluster.owners()
        finally:
            firsts.cancel()
            await asyncio.gather(firsts, return_exceptions=True)
            await self._cluster.close(*streams)
        by_worker: dict[str, list[Held]] = {}
        for stream in streams:
            if (worker := workers.get(stream.timed.request)) is not None:
                by_worker.setdefault(worker, []).append(stream)
        for worker, those in by_worker.items():
            seconds = max(s.timed.times_s[0] for s in those) - min(s.sent_s for s in those)
            tokens = sum(s.prompt_tokens for s in those)
            self.found.prefills.append(PrefillSample(step.model, worker, len(those), tokens, seconds))


@dataclass(slots=True)
class Load:
    """One request that decodes at each end of a pair, begun anew before it ends."""

    cluster: Cluster
    step: MovesStep
    streams: dict[str, Held]

    def on(self, worker: str) -> Held:
        """The one at a worker."""
        return self.streams[worker]

    async def refreshed(self) -> list[Held]:
        """Both of them, with at least half of their tokens still to come."""
        for worker in (self.step.first, self.step.second):
            held = self.streams.get(worker)
            if held is not None and held.left < held.max_tokens / 2:
                await self.cluster.close(self.streams.pop(worker))
                held = None
            if held is None:
                room = self.step.max_tokens + self.step.context_tokens - DECODE_PROMPT_TOKENS
                self.streams[worker] = await self.cluster.open(
                    self.step.model, DECODE_PROMPT_TOKENS, room, worker
                )
        return list(self.streams.values())


def _move_sample(held: Held, source: str, record: MoveRecord, *, is_loaded: bool) -> MoveSample:
    actual = record.actual or Phases()
    is_shipped = record.kv_tokens > 0
    return MoveSample(
        model=held.model,
        source=source,
        destination=held.worker,
        is_loaded=is_loaded,
        kv_tokens=record.kv_tokens,
        kv_bytes=record.kv_bytes if is_shipped else 0,
        computed_tokens=0 if is_shipped else record.computed_tokens or record.context_tokens,
        ready_s=actual.ready_s,
    )


def _ratio(held: Held, start_s: float, end_s: float, num_before: int) -> float | None:
    """Mean gap between tokens from `start_s` to `end_s`, over that of the last gaps before."""
    times = held.timed.times_s
    before = [b - a for a, b in pairwise(times) if b <= start_s][-num_before:]
    during = [b - a for a, b in pairwise(times) if a >= start_s and b <= end_s]
    if len(before) < MIN_GAPS or len(during) < MIN_GAPS or fmean(before) <= 0:
        return None
    return fmean(during) / fmean(before)

"""One simulated token stands for several real ones, since an hour of a fleet has millions. Pure.

Times stay as they are, up to the rounding of lengths: there are as many steps fewer as each takes longer.
What happens between steps becomes as coarse: batches change and requests move at simulated tokens.
"""

from math import ceil

from msgspec.structs import replace

from godwit.protocol.entry import MoveRecord
from godwit.sim.outcome import Answer, Outcome
from godwit.sim.spec import Ask, ModelSpec, Policies, Rates, Run, WorkerSpec
from godwit.types import Round


def coarsen(run: Run, grain: int) -> Run:
    """The same run with `grain` real tokens in each simulated one; ValueError for a grain below 1.

    Lengths are rounded up, limits down. `refine` makes its outcome one of the run's own.
    """
    if grain < 1:
        raise ValueError(f"a grain is at least 1, not {grain}")
    cluster = replace(
        run.cluster,
        models=tuple(_model(model, grain) for model in run.cluster.models),
        workers=tuple(_worker(worker, grain) for worker in run.cluster.workers),
    )
    return replace(
        run,
        cluster=cluster,
        asks=tuple(_ask(ask, grain) for ask in run.asks),
        head=_head(run.head, grain),
        lump_tokens=max(1, run.lump_tokens // grain),
    )


def refine(outcome: Outcome, run: Run, grain: int) -> Outcome:
    """What came of `coarsen(run, grain)` in the run's own tokens; answers are in the order of the asks."""
    answers = zip(outcome.answers, run.asks, strict=True)
    return replace(
        outcome,
        answers=tuple(_answer(answer, ask, grain) for answer, ask in answers),
        moves=tuple(_move(move, grain) for move in outcome.moves),
    )


def _ask(ask: Ask, grain: int) -> Ask:
    expected = None if ask.expected_output is None else ask.expected_output / grain
    return replace(
        ask,
        num_prompt=ceil(ask.num_prompt / grain),
        num_output=ceil(ask.num_output / grain),
        expected_output=expected,
    )


def _head(head: Policies, grain: int) -> Policies:
    if head.early is None:
        return head
    return replace(head, early=replace(head.early, min_remaining=ceil(head.early.min_remaining / grain)))


def _model(model: ModelSpec, grain: int) -> ModelSpec:
    return replace(
        model,
        context_tokens=model.context_tokens // grain,
        kv_bytes_per_token=model.kv_bytes_per_token * grain,
    )


def _worker(worker: WorkerSpec, grain: int) -> WorkerSpec:
    context = worker.context_tokens
    return replace(
        worker,
        rates=_rates(worker.rates, grain),
        model_rates={name: _rates(rates, grain) for name, rates in worker.model_rates.items()},
        context_tokens=None if context is None else context // grain,
    )


def _rates(rates: Rates, grain: int) -> Rates:
    return Rates(
        decode_s=tuple(seconds * grain for seconds in rates.decode_s),
        prefill_tps=rates.prefill_tps / grain,
        chunk_tokens=max(1, rates.chunk_tokens // grain),
    )


def _answer(answer: Answer, ask: Ask, grain: int) -> Answer:
    # The last simulated token may stand for fewer real ones.
    return replace(answer, ask=ask, num_tokens=min(answer.num_tokens * grain, ask.num_output))


def _move(move: MoveRecord, grain: int) -> MoveRecord:
    return replace(
        move,
        rounds=tuple(Round(one.tokens * grain, one.seconds) for one in move.rounds),
        gap_tokens=move.gap_tokens * grain,
        num_output=move.num_output * grain,
        kv_tokens=move.kv_tokens * grain,
        context_tokens=move.context_tokens * grain,
        computed_tokens=move.computed_tokens * grain,
    )

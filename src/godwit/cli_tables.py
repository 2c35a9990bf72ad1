"""What the command line shows to people."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from godwit.admin.shapes import EmulatedTiers
from godwit.client import ClusterStatus, Estimates, ModelStatus, RequestStatus, WorkerStatus
from godwit.costs.accuracy import ErrorSummary
from godwit.costs.report import CostsReport, Known, PairReport, ServerReport
from godwit.costs.sessions import LeavingEstimate
from godwit.protocol.entry import MoveRecord
from godwit.types import Tier


def show_status(console: Console, status: ClusterStatus) -> None:
    """Workers, requests and the latest moves, one table each."""
    if not status.workers:
        console.print("No worker is connected; start one with `godwit worker --join URL`.")
    else:
        console.print(_workers(status.workers))
    if status.requests:
        console.print(_requests(status.requests))
    if status.moves:
        console.print(_moves(status.moves))


def show_costs(console: Console, costs: CostsReport) -> None:
    """The constants by pair of workers and by model, and how far predictions were from what happened."""
    console.print(_pairs(costs.pairs))
    console.print(_servers(costs.servers))
    if not costs.errors:
        console.print("No move has been predicted and made yet.")
        return
    console.print(_errors("phase", "moves", costs.errors))


def show_estimates(console: Console, answer: Estimates) -> None:
    """What loads and moves are expected to take, by worker, and how far predictions were off."""
    report = answer.estimates
    loads = make_table("Loads", "worker", "from", "MB/s", "where it comes from")
    for load in report.loads:
        rate = _figure(load.bandwidth_bytes_per_s / 1e6)
        loads.add_row(load.worker or "any other", load.tier, rate, _origin(load.n, "load"))
    console.print(loads)
    if report.resumes:
        columns = (
            "worker",
            "model",
            "overhead",
            "per context token",
            "where it comes from",
            "per output token",
        )
        resumes = make_table("Moves, until the destination can decode", *columns)
        for one in report.resumes:
            line = (_ms(one.overhead_s), _ms(one.per_token_s), _origin(one.n, "move"))
            resumes.add_row(one.worker or "any other", one.model, *line, _ms(one.token_s))
        console.print(resumes)
    if report.errors:
        console.print(_errors("what", "times", report.errors))
    else:
        console.print("No load or move has been predicted and made yet.")
    if answer.leaving:
        console.print(_leaving(answer.leaving))
    show_emulation(console, answer.emulated_tiers)


def _leaving(estimates: Sequence[LeavingEstimate]) -> Table:
    columns = ("worker", "here for", "leaves within 10 min", "earlier sessions", "by")
    table = make_table("How likely workers are to leave", *columns)
    for one in estimates:
        here = f"{one.age_s:.0f} s"
        if one.notice_s is not None:
            here += f", gone within {one.notice_s:.0f} s"
        sessions = f"{one.n}, of which {one.num_ended} ended"
        table.add_row(one.worker, here, f"{one.leaves_within_10_min:.1%}", sessions, one.family)
    return table


def show_emulation(console: Console, emulated: EmulatedTiers) -> None:
    """Say which times are not those of the hardware, if any."""
    for worker, tiers in sorted(emulated.items()):
        console.print(f"{worker} {emulation(tiers)}: its times are not its hardware's.", markup=False)


def emulation(tiers: Mapping[Tier, float]) -> str:
    """A predicate of a worker."""
    return "emulates " + ", ".join(f"{tier} at {rate / 1e6:g} MB/s" for tier, rate in sorted(tiers.items()))


def describe_move(move: MoveRecord) -> str:
    """One line about a move that is over."""
    if move.outcome != "done":
        return f"{move.request} stayed on {move.source}: {move.reason or 'the move failed'}"
    details = [f"{move.kv_bytes / 1e6:.1f} MB of KV"] if move.kv_tokens else []
    if move.kv_problem is not None:
        details.append(f"no KV ({move.kv_problem})")
    details += [f"{len(move.rounds)} rounds of {_rounds(move)} tokens"] if move.rounds else []
    if move.pause_s is not None:
        details.append(f"pause {_ms(move.pause_s)}")
    if move.broken:
        details.append(f"approximate from there on: {', '.join(move.broken)} not kept")
    return f"{move.request} moved from {move.source} to {move.destination}: {', '.join(details) or 'done'}"


def _workers(workers: tuple[WorkerStatus, ...]) -> Table:
    table = make_table("Workers", "name", "state", "slots", "device", "models")
    for worker in workers:
        state = "draining" if worker.draining else worker.state
        if (emulated := worker.emulated_bandwidth_bytes_per_s) is not None:
            state += f", emulates a link of {emulated * 8 / 1e6:g} Mbit/s"
        if worker.emulated_tiers:
            state += f", {emulation(worker.emulated_tiers)}"
        device = f"{size_of(worker.used_bytes)} of {size_of(worker.device_bytes)}"
        models = "\n".join(_model(model) for model in worker.models)
        table.add_row(worker.name, state, f"{worker.used}/{worker.slots}", device, models)
    return table


def _model(model: ModelStatus) -> str:
    """Where it is, and what goes on with it."""
    if model.is_loading:
        moved = model.progress
        share = f" {moved.num_bytes / moved.total_bytes:.0%}" if moved and moved.total_bytes else ""
        text = f"{model.name}: loading{share} from {model.tier}"
    elif model.is_loaded:
        text = f"{model.name}: {model.num_running} running, {size_of(model.device_bytes)}"
    else:
        text = f"{model.name}: in {model.tier}"
    return f"{text}, pinned" if model.is_pinned else text


def _requests(requests: tuple[RequestStatus, ...]) -> Table:
    table = make_table("Requests", "id", "model", "worker", "state", "prompt", "output", "moves")
    for one in requests:
        counts = (str(one.num_prompt), str(one.num_output), str(one.moves))
        table.add_row(one.id, one.model, one.worker or "-", one.state, *counts)
    return table


def _moves(moves: tuple[MoveRecord, ...]) -> Table:
    table = make_table("Latest moves", "request", "from", "to", "method", "outcome", "rounds", "gap", "pause")
    for move in moves:
        outcome = f"{move.outcome}: {move.reason}"
        pause = "-" if move.pause_s is None else _ms(move.pause_s)
        ends = (move.request, move.source, move.destination or "-")
        table.add_row(*ends, move.method, outcome, _rounds(move), str(move.gap_tokens), pause)
    return table


def _pairs(pairs: Sequence[PairReport]) -> Table:
    table = make_table("Transfers", "from", "to", "overhead", "Mbit/s", "under load", "where it comes from")
    for pair in pairs:
        overhead, bandwidth = pair.transfer_overhead_s, pair.bandwidth_bytes_per_s
        figures = (_ms(overhead.value), _figure(bandwidth.value * 8 / 1e6), f"{pair.loaded_share:.0%}")
        ends = (pair.source or "any other", pair.destination or "any other")
        table.add_row(*ends, *figures, _origins(overhead=overhead, rate=bandwidth))
    return table


def _servers(servers: Sequence[ServerReport]) -> Table:
    columns = ("worker", "model", "overhead", "tokens/s", "under load", "KV per token", "where it comes from")
    table = make_table("Recomputes", *columns)
    for one in servers:
        overhead, prefill, size = one.recompute_overhead_s, one.prefill_tps, one.kv_bytes_per_token
        figures = (_ms(overhead.value), _figure(prefill.value), f"{one.loaded_share:.0%}")
        ends = (one.worker or "any other", one.model or "any other")
        origins = _origins(overhead=overhead, rate=prefill, KV=size)
        table.add_row(*ends, *figures, f"{_figure(size.value)} bytes", origins)
    return table


def _errors(what: str, counted: str, summaries: Mapping[str, ErrorSummary]) -> Table:
    errors = make_table("Predicted against measured", what, counted, "median error", "95 %", "bias")
    for name, summary in summaries.items():
        seconds = (summary.p50_s, summary.p95_s, summary.bias_s)
        errors.add_row(name, str(summary.n), *(_ms(one) for one in seconds))
    return errors


def _origin(n: int, what: str) -> str:
    return f"learnt from {n} {what}{'' if n == 1 else 's'}" if n else "assumed"


def _origins(**constants: Known) -> str:
    """Where constants come from: in a word where it is the same for all."""
    origins = {name: constant.provenance for name, constant in constants.items()}
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return "; ".join(f"{name} {origin}" for name, origin in origins.items())


def make_table(title: str, *columns: str) -> Table:
    """An empty table in this command line's style."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rounds(move: MoveRecord) -> str:
    return " + ".join(str(one.tokens) for one in move.rounds) or "-"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size_of(num_bytes: int) -> str:
    """Bytes as people read them."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"

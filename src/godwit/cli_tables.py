"""What the command line shows to people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from godwit.client import ClusterStatus, RequestStatus, WorkerStatus
from godwit.costs.report import CostsReport, Known, PairReport, ServerReport
from godwit.protocol.entry import MoveRecord


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
    table = _table("Predicted against measured", "phase", "moves", "median error", "95 %", "bias")
    for phase, errors in costs.errors.items():
        seconds = (errors.p50_s, errors.p95_s, errors.bias_s)
        table.add_row(phase, str(errors.n), *(_ms(one) for one in seconds))
    console.print(table)


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
    return f"{move.request} moved from {move.source} to {move.destination}: {', '.join(details) or 'done'}"


def _workers(workers: tuple[WorkerStatus, ...]) -> Table:
    table = _table("Workers", "name", "state", "slots", "models")
    for worker in workers:
        state = "draining" if worker.draining else worker.state
        if (emulated := worker.emulated_bandwidth_bytes_per_s) is not None:
            state += f", emulates a link of {emulated * 8 / 1e6:g} Mbit/s"
        models = ", ".join(
            model.name if model.is_loaded else f"{model.name} (not loaded)" for model in worker.models
        )
        table.add_row(worker.name, state, f"{worker.used}/{worker.slots}", models)
    return table


def _requests(requests: tuple[RequestStatus, ...]) -> Table:
    table = _table("Requests", "id", "model", "worker", "state", "prompt", "output", "moves")
    for one in requests:
        counts = (str(one.num_prompt), str(one.num_output), str(one.moves))
        table.add_row(one.id, one.model, one.worker or "-", one.state, *counts)
    return table


def _moves(moves: tuple[MoveRecord, ...]) -> Table:
    table = _table("Latest moves", "request", "from", "to", "method", "outcome", "rounds", "gap", "pause")
    for move in moves:
        outcome = f"{move.outcome}: {move.reason}"
        pause = "-" if move.pause_s is None else _ms(move.pause_s)
        ends = (move.request, move.source, move.destination or "-")
        table.add_row(*ends, move.method, outcome, _rounds(move), str(move.gap_tokens), pause)
    return table


def _pairs(pairs: Sequence[PairReport]) -> Table:
    table = _table("Transfers", "from", "to", "overhead", "Mbit/s", "under load", "where it comes from")
    for pair in pairs:
        overhead, bandwidth = pair.transfer_overhead_s, pair.bandwidth_bytes_per_s
        figures = (_ms(overhead.value), _figure(bandwidth.value * 8 / 1e6), f"{pair.loaded_share:.0%}")
        ends = (pair.source or "any other", pair.destination or "any other")
        table.add_row(*ends, *figures, _origins(overhead=overhead, rate=bandwidth))
    return table


def _servers(servers: Sequence[ServerReport]) -> Table:
    columns = ("worker", "model", "overhead", "tokens/s", "under load", "KV per token", "where it comes from")
    table = _table("Recomputes", *columns)
    for one in servers:
        overhead, prefill, size = one.recompute_overhead_s, one.prefill_tps, one.kv_bytes_per_token
        figures = (_ms(overhead.value), _figure(prefill.value), f"{one.loaded_share:.0%}")
        ends = (one.worker or "any other", one.model or "any other")
        origins = _origins(overhead=overhead, rate=prefill, KV=size)
        table.add_row(*ends, *figures, f"{_figure(size.value)} bytes", origins)
    return table


def _origins(**constants: Known) -> str:
    """Where constants come from: in a word where it is the same for all."""
    origins = {name: constant.provenance for name, constant in constants.items()}
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return "; ".join(f"{name} {origin}" for name, origin in origins.items())


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rounds(move: MoveRecord) -> str:
    return " + ".join(str(one.tokens) for one in move.rounds) or "-"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

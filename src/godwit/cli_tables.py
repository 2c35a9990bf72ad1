"""What the command line shows to people."""

from rich.console import Console
from rich.table import Table

from godwit.client import ClusterStatus, RequestStatus, WorkerStatus
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


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rounds(move: MoveRecord) -> str:
    return " + ".join(str(one.tokens) for one in move.rounds) or "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

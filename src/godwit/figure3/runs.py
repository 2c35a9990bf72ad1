"""One run of the scene as figures and bars: from the head's log, its moves and what the clients saw. Pure."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from godwit.figure3.timeline import Bar, Client, make_bars, servers_of
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.eventlog import LogEntry

PREEMPTED = "preempted"

# What the log tells of the scene, without the routine.
_TOLD = (
    "RequestQueued",
    "Start",
    "Load",
    "Loaded",
    "Unload",
    "Move",
    "MoveEnded",
    "Preempt",
    "FailoverEnded",
)


class Run(Struct, frozen=True):
    """One run of the scene under one policy.

    `b_ttft_s` is from asking to the first token, `a_total_s` from asking to the last. `recomputed_tokens` of
    A were known when it changed servers, and its KV of them was computed again. `how` it changed servers: a
    move's method, "preempted", or None. `decisions` are the head's, `bars` what happened; both count seconds
    from the moment when B was asked for.
    """

    policy: str
    b_ttft_s: float
    a_max_itl_s: float
    a_median_itl_s: float
    a_total_s: float
    recomputed_tokens: int
    a_servers: tuple[str, ...]
    b_servers: tuple[str, ...]
    how: str | None
    a_ids: tuple[int, ...]
    decisions: tuple[str, ...]
    bars: tuple[Bar, ...]


def make_run(
    policy: str,
    a: Client,
    b: Client,
    log: Sequence[LogEntry],
    moves: Sequence[MoveRecord],
    *,
    a_ids: Sequence[int],
    a_prompt_tokens: int,
) -> Run:
    """A run whose answers are whole; the log's clock is that of the clients."""
    of_a = [move for move in moves if move.request == a.request and move.outcome == "done"]
    zero_s = b.asked_s
    return Run(
        policy=policy,
        b_ttft_s=round(b.times_s[0] - b.asked_s, 4),
        a_max_itl_s=round(max(a.gaps_s), 4),
        a_median_itl_s=round(median(a.gaps_s), 4),
        a_total_s=round(a.times_s[-1] - a.asked_s, 4),
        recomputed_tokens=sum(recomputed_tokens(move, a_prompt_tokens) for move in of_a),
        a_servers=servers_of(log, moves, a),
        b_servers=servers_of(log, moves, b),
        how=next((PREEMPTED if move.method == "failover" else move.method for move in of_a), None),
        a_ids=tuple(a_ids),
        decisions=tuple(_line(one, zero_s) for one in log if one.kind in _TOLD and one.at_s >= a.asked_s),
        bars=make_bars(log, moves, (a, b), zero_s),
    )


def recomputed_tokens(move: MoveRecord, num_prompt: int) -> int:
    """Of the tokens that were known when the request changed servers, those whose KV did not travel."""
    return num_prompt + move.num_output - move.kv_tokens


def _line(entry: LogEntry, zero_s: float) -> str:
    """One entry for people; what the reasons call requests and workers is left as it is."""
    where = " → ".join(name for name in (entry.worker, entry.destination) if name)
    words = (f"{entry.at_s - zero_s:+.2f} s", entry.kind, entry.model or "", where)
    line = " ".join(word for word in words if word)
    return f"{line}: {entry.reason}" if entry.reason else line

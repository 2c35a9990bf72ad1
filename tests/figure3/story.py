"""Runs of the scene as logs, moves and clients, made up: what the pure parts are tested with."""

from collections.abc import Sequence

from godwit.figure3.timeline import Client
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.eventlog import LogEntry
from godwit.types import ModelName, MoveId, RequestId, Round, WorkerId

A, B = RequestId("req-a"), RequestId("req-b")
MODEL_A, MODEL_B = ModelName("model-a"), ModelName("model-b")


def entry(
    at_s: float,
    kind: str,
    *,
    request: RequestId | None = None,
    model: ModelName | None = None,
    worker: str | None = None,
    destination: str | None = None,
    seconds: float | None = None,
) -> LogEntry:
    """One line of the log."""
    return LogEntry(
        1,
        at_s,
        kind,
        "",
        request,
        model,
        None if worker is None else WorkerId(worker),
        None if destination is None else WorkerId(destination),
        seconds,
    )


def move(
    method: str, num_output: int, *, kv_tokens: int = 0, outcome: str = "done", request: RequestId = A
) -> MoveRecord:
    """A change from w2 to w1 that begins with output `num_output` there."""
    rounds = () if method == "failover" else (Round(3, 0.1),)
    return MoveRecord(
        MoveId("move"),
        request,
        WorkerId("w2"),
        WorkerId("w1"),
        method,
        outcome,
        "",
        rounds,
        0,
        num_output,
        0.1,
        1.0,
        kv_tokens,
    )


def client(label: str, asked_s: float, times_s: Sequence[float]) -> Client:
    """What a client saw."""
    model, request = (MODEL_A, A) if label == "A" else (MODEL_B, B)
    return Client(label, model, request, asked_s, tuple(times_s))


def tokens(first_s: float, count: int, itl_s: float = 0.5) -> list[float]:
    """When so many tokens came, one after the other."""
    return [first_s + itl_s * number for number in range(count)]

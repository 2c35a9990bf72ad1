"""What people see of a cluster."""

from rich.console import Console

from godwit.cli_tables import describe_move, show_status
from godwit.client import ClusterStatus, ModelStatus, MoveRecord, RequestStatus, WorkerStatus

DONE = MoveRecord("r1", "w1", "w2", "done", rounds=((120, 0.4), (3, 0.02)), gap_tokens=1, pause_s=0.0142)
FAILED = MoveRecord("r1", "w1", "w2", "failed", reason="w2 died")


def _shown(status: ClusterStatus) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        show_status(console, status)
    return capture.get()


def test_an_empty_cluster_says_how_to_add_a_worker() -> None:
    assert "godwit worker --join" in _shown(ClusterStatus())


def test_workers_requests_and_moves_are_listed() -> None:
    models = (ModelStatus("m", is_loaded=True), ModelStatus("n"))
    text = _shown(
        ClusterStatus(
            workers=(
                WorkerStatus("w1", "up", slots=4, used=3, models=models),
                WorkerStatus("w2", "up", slots=4, used=0, draining=True),
            ),
            requests=(
                RequestStatus("r1", "m", "w1", "running", 12, 34, 1, 1),
                RequestStatus("r2", "m", None, "queued"),
            ),
            moves=(DONE, FAILED),
        )
    )
    for words in (
        "3/4",
        "m, n (not loaded)",
        "draining",
        "r1",
        "34",
        "queued",
        "120 + 3",
        "14.2 ms",
        "failed: w2 died",
    ):
        assert words in text


def test_a_move_is_told_in_a_line() -> None:
    assert describe_move(DONE) == "r1 moved from w1 to w2: 2 rounds of 120 + 3 tokens, pause 14.2 ms"
    kv = MoveRecord("r1", "w1", "w2", "done", "kv", rounds=((9, 0.1),), kv_tokens=99, kv_bytes=2_300_000)
    assert describe_move(kv) == "r1 moved from w1 to w2: 2.3 MB of KV, 1 rounds of 9 tokens"
    fell_back = MoveRecord("r1", "w1", "w2", "done", "kv→tokens", kv_problem="its digest is wrong")
    assert "no KV (its digest is wrong)" in describe_move(fell_back)
    assert describe_move(FAILED) == "r1 stayed on w1: w2 died"

"""What people see of a cluster."""

from msgspec.structs import replace
from rich.console import Console

from godwit.admin.shapes import Estimates, Progress
from godwit.cli_tables import describe_move, show_costs, show_estimates, show_status
from godwit.client import ClusterStatus, ModelStatus, RequestStatus, WorkerStatus
from godwit.costs.accuracy import ErrorSummary
from godwit.costs.report import CostsReport, Known, PairReport, ServerReport
from godwit.costs.sessions import LeavingEstimate
from godwit.costs.startup import EstimatesReport, LoadEstimate, ResumeEstimate
from godwit.protocol.entry import MoveRecord
from godwit.types import MoveId, RequestId, Round, Tier, WorkerId

DONE = MoveRecord(
    MoveId("m1"),
    RequestId("r1"),
    WorkerId("w1"),
    WorkerId("w2"),
    "tokens",
    "done",
    "asked for",
    (Round(120, 0.4), Round(3, 0.02)),
    1,
    150,
    0.0142,
    0.6,
)
FAILED = replace(DONE, outcome="failed", reason="w2 died")


def _shown(status: ClusterStatus) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        show_status(console, status)
    return capture.get()


def test_an_empty_cluster_says_how_to_add_a_worker() -> None:
    assert "godwit worker --join" in _shown(ClusterStatus())


def test_workers_requests_and_moves_are_listed() -> None:
    models = (
        ModelStatus("m", is_loaded=True, num_running=3, device_bytes=2_500_000_000, is_pinned=True),
        ModelStatus("n", tier=Tier.REMOTE),
        ModelStatus("o", is_loading=True, tier=Tier.DRAM, progress=Progress(Tier.DRAM, 30, 120)),
    )
    text = _shown(
        ClusterStatus(
            workers=(
                WorkerStatus(
                    "w1",
                    "up",
                    slots=4,
                    used=3,
                    models=models,
                    device_bytes=8_000_000_000,
                    used_bytes=2_500_000_000,
                    emulated_tiers={Tier.SSD: 1e8, Tier.REMOTE: 2.5e6},
                ),
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
        "2.5 GB of 8.0 GB",
        "m: 3 running, 2.5 GB, pinned",
        "n: in remote",
        "o: loading 25% from dram",
        "up, emulates remote at 2.5 MB/s, ssd at 100 MB/s",
        "draining",
        "r1",
        "34",
        "queued",
        "120 + 3",
        "14.2 ms",
        "failed: w2 died",
    ):
        assert words in text


def test_what_moves_cost_is_listed_with_where_it_comes_from() -> None:
    assumed, learnt = Known(0.5, 0, "assumed"), Known(0.025, 3, "learnt from 3 moves")
    rate, size = Known(2e7, 3, "learnt from 3 moves"), Known(23_000, 0, "measured on a laptop")
    costs = CostsReport(
        (
            PairReport(None, None, assumed, Known(1.25e9, 0, "assumed"), 1.0),
            PairReport("w1", "w2", learnt, rate, 0.25),
        ),
        (ServerReport("w2", "m", learnt, Known(150, 3, "learnt from 3 moves"), size, 1.0),),
        {"ready": ErrorSummary(7, 0.1, 0.4, -0.05)},
    )
    console = Console(width=200)
    with console.capture() as capture:
        show_costs(console, costs)
    lines = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert "any other any other 500.0 ms 10,000 100% assumed" in lines
    assert "w1 w2 25.0 ms 160 25% learnt from 3 moves" in lines
    assert (
        "w2 m 25.0 ms 150 100% 23,000 bytes overhead learnt from 3 moves; "
        "rate learnt from 3 moves; KV measured on a laptop"
    ) in lines
    assert "ready 7 100.0 ms 400.0 ms -50.0 ms" in lines


def test_estimates_are_listed_with_where_they_come_from_and_what_is_emulated() -> None:
    report = EstimatesReport(
        (LoadEstimate(None, Tier.SSD, 1.5e9, 0, "assumed"), LoadEstimate("w1", Tier.SSD, 2e8, 1, "learnt")),
        (ResumeEstimate("w1", "m", 0.2, 0.004, 3, "learnt", 0.05, 0),),
        {"load": ErrorSummary(7, 0.1, 0.4, -0.05)},
    )
    console = Console(width=160)
    with console.capture() as capture:
        leaving = (
            LeavingEstimate("w1", 6, 5, 70.4, 0.3721, None, "weibull"),
            LeavingEstimate("w2", 0, 0, 5.0, 1.0, 30.0, "weibull"),
        )
        show_estimates(console, Estimates(report, {"w1": {Tier.SSD: 2e8}}, leaving))
    lines = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert "any other ssd 1,500 assumed" in lines
    assert "w1 ssd 200 learnt from 1 load" in lines
    assert "w1 m 200.0 ms 4.0 ms learnt from 3 moves 50.0 ms" in lines
    assert "load 7 100.0 ms 400.0 ms -50.0 ms" in lines
    assert "w1 70 s 37.2% 6, of which 5 ended weibull" in lines
    assert "w2 5 s, gone within 30 s 100.0% 0, of which 0 ended weibull" in lines
    assert "w1 emulates ssd at 200 MB/s: its times are not its hardware's." in lines


def test_a_move_is_told_in_a_line() -> None:
    assert describe_move(DONE) == "r1 moved from w1 to w2: 2 rounds of 120 + 3 tokens, pause 14.2 ms"
    kv = replace(DONE, method="kv", rounds=(Round(9, 0.1),), pause_s=None, kv_tokens=99, kv_bytes=2_300_000)
    assert describe_move(kv) == "r1 moved from w1 to w2: 2.3 MB of KV, 1 rounds of 9 tokens"
    fell_back = replace(DONE, method="kv→tokens", kv_problem="its digest is wrong")
    assert "no KV (its digest is wrong)" in describe_move(fell_back)
    assert describe_move(FAILED) == "r1 stayed on w1: w2 died"

"""The crossover benchmark with fake engines: what it reports, and that nothing is left behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from godwit.bench.crossover_report import CrossoverReport
from godwit.bench.links import PacedLinks, open_links
from godwit.bench.netns import NetnsError, VethLinks, why_no_namespaces
from tests.bench.crossoverprocess import CONTEXTS, LINKS_MBIT

DEADLINE_S = 180.0
COLUMNS = {"transfer", "recompute", "split", "auto"}


@contextmanager
def running(kind: str) -> Iterator["subprocess.Popen[str]"]:
    """The small benchmark; killed where the test ends before it."""
    command = (sys.executable, "-m", "tests.bench.crossoverprocess", kind)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def namespaces() -> None:
    """Skips the test where namespaces are not permitted."""
    if (why := why_no_namespaces()) is not None:
        pytest.skip(f"no network namespaces here: {why}")


@pytest.mark.usefixtures("namespaces")
def test_over_veths_every_cell_and_link_is_there_and_nothing_stays() -> None:
    before = _devices()
    with running("veth") as process:
        report, holders = _finish(process)
    assert len(holders) == 2
    _check(report)
    assert report.links_are == "veth + tbf"
    slow, fast = report.links
    # Headers are not counted, and a bucket's worth of bytes is free.
    assert 0.1 < slow.effective_mbit < 0.8
    assert fast.effective_mbit > 10 * slow.effective_mbit
    assert not [pid for pid in holders if Path(f"/proc/{pid}").exists()]
    assert _devices() == before


@pytest.mark.usefixtures("namespaces")
def test_killed_in_the_middle_it_leaves_neither_processes_nor_namespaces() -> None:
    with running("veth") as process:
        holders = _holders(process)
        spaces = {_namespace(pid) for pid in holders} | {_namespace(process.pid)}
        assert None not in spaces
        assert len(spaces) == 3
        _wait_for_moves(process)
        assert len(_inside(spaces)) >= 5  # itself, two holders, two workers
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        end = time.monotonic() + 30
        while left := _inside(spaces):
            assert time.monotonic() < end, left
            time.sleep(0.05)


def test_without_namespaces_a_paced_sender_takes_their_place_and_says_so() -> None:
    with running("paced") as process:
        report, holders = _finish(process)
    assert not holders
    _check(report)
    assert report.links_are == "paced sender on loopback"


def test_what_is_missing_for_namespaces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said: list[str] = []
    with open_links(said.append) as links:
        assert isinstance(links, PacedLinks)
    assert "not installed: ip, tc, nsenter, unshare" in said[0]


def test_a_namespace_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NetnsError("no namespace of one's own: Operation not permitted")

    monkeypatch.setattr("godwit.bench.netns._enter_own_namespace", refuse)
    with pytest.raises(NetnsError, match="not permitted"), VethLinks(("a", "b")):
        pass


def _check(report: CrossoverReport) -> None:
    # Moves that had to be tried again are no reason to fail; cells that are not there are.
    assert [(cell.link_mbit, cell.context_tokens) for cell in report.cells] == [
        (link, context) for link in LINKS_MBIT for context in CONTEXTS
    ], report.problems
    for cell in report.cells:
        assert min(cell.transfer_s, cell.recompute_s, cell.split_s, cell.auto_s) > 0
        assert set(cell.max_s) == set(cell.predicted_s) == COLUMNS
        # A live move over the slow link may fail to converge where the machine is busy.
        if cell.link_mbit is None:
            live = (cell.live_transfer_s, cell.live_recompute_s, cell.live_split_s, cell.live_auto_s)
            assert None not in live, report.problems
            assert set(cell.live_max_s) == set(cell.live_pause_ms) == COLUMNS
        assert cell.auto_method in COLUMNS - {"auto"}
        assert cell.regret >= 1
    assert [link.link_mbit for link in report.links] == list(LINKS_MBIT)
    for link in report.links:
        assert link.constants.kv_bytes_per_token.value == pytest.approx(64, rel=0.05)
        assert "by moves over this link" in link.constants.prefill_tps.provenance
    # 400 tokens' 25 kB need a second of the slow link, and recomputing them needs a tenth.
    assert report.cells[1].transfer_s > report.cells[1].recompute_s
    assert report.auto_regret is not None
    assert report.split_over_best is not None


def _finish(process: "subprocess.Popen[str]") -> tuple[CrossoverReport, list[int]]:
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    first, *_, last = output.splitlines()
    return msgspec.json.decode(last, type=CrossoverReport), [int(pid) for pid in first.split()[1:]]


def _holders(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()[1:]]


def _wait_for_moves(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "calibration" in line:
            return
    raise AssertionError("it ended before its first measured move")


def _inside(spaces: set[str | None]) -> list[int]:
    """The processes that are in one of these namespaces."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _namespace(pid) in spaces - {None}]


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return None


def _devices() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())

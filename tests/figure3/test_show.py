"""The report for people: bars in characters, a table, a picture."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from godwit.errors import ConfigError
from godwit.figure3.plot import check_plot, save_plot
from godwit.figure3.report import Emulated, Figure3Report, make_report
from godwit.figure3.runs import Run
from godwit.figure3.show import draw, show_report
from godwit.figure3.timeline import Bar, Kind

BARS = (
    Bar("w2", Kind.DECODE, "A", -5.0, 10.0),
    Bar("w1", Kind.LOAD, "B", 0.0, 5.0),
    Bar("w1", Kind.WAIT, "B", 0.0, 5.0),
    Bar("w1", Kind.DECODE, "B", 5.0, 6.0),
)


@pytest.fixture(params=[1, 2])
def report(request: pytest.FixtureRequest) -> Figure3Report:
    """Two policies, one run each or two."""
    runs = [
        Run(policy, 4.0, 10.1, 0.05, 14.0, 375, ("w2", "w1"), ("w2",), how, (1,), (), BARS)
        for policy, how in (("preemption", "preempted"), ("availability", None), ("live_migration", "kv"))
    ] * request.param
    return make_report(runs, {"A": "model-a", "B": "model-b"}, Emulated(40.0, 200.0))


def test_a_server_has_a_line_for_its_device_and_one_for_those_that_wait() -> None:
    lines = [line.plain for line in draw(BARS, (-5.0, 10.0), 30)]
    assert lines == [
        "server 1  " + " " * 10 + "B▒▒▒▒▒▒▒▒▒B█" + " " * 8,
        "          " + " " * 10 + "B·········" + " " * 10,
        "server 2  " + "A" + "█" * 29,
    ]


def test_the_shortest_bar_is_seen() -> None:
    (first, _) = draw([Bar("w1", Kind.RESUME, "A", 2.0, 2.0001)], (0.0, 10.0), 20)
    assert first.plain.rstrip() == "server 1      ▓"


def test_people_see_the_figures_the_aims_and_what_is_emulated(report: Figure3Report) -> None:
    out = io.StringIO()
    show_report(Console(file=out, width=80), report)
    shown = out.getvalue()
    assert "4.00 s" in shown
    assert "w2→w1 preempted w2" in shown
    assert "1.00 (aim at most 0.6: not met)" in shown
    assert "the same in all runs" in shown
    assert "emulated: loads from SSD at 40 MB/s, from DRAM at 200 MB/s" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_picture_is_drawn(report: Figure3Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure3.png"
    check_plot(path)
    save_plot(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "why"), [("x.doc", "must end with one of"), ("no/x.png", "no folder")])
def test_what_cannot_be_drawn_is_said_before_anything_runs(name: str, why: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=why):
        check_plot(tmp_path / name)

"""`godwit demo` is a command, and has one below it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from godwit import cli_demo
from godwit.cli import app
from godwit.demo import DemoReport
from godwit.figure3.report import POLICIES, Emulated, Figure3Report, make_report
from godwit.figure3.runs import Run
from godwit.figure3.scene import Scene
from godwit.figure3.timeline import Bar, Kind


def _godwit(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def _report(*ids: int) -> Figure3Report:
    """A run of each policy; the answers of A begin with these ids in turn."""
    bars = (Bar("w2", Kind.DECODE, "A", -1.0, 2.0),)
    runs = [
        Run(policy, 4.0, 0.1, 0.05, 14.0, 0, ("w2",), ("w1",), None, (ids[number % len(ids)],), (), bars)
        for number, policy in enumerate(POLICIES)
    ]
    return make_report(runs, {"A": "a", "B": "b"}, Emulated(40.0, 200.0))


@pytest.mark.parametrize("ok", [True, False])
def test_demo_alone_is_the_demo(monkeypatch: pytest.MonkeyPatch, ok: bool) -> None:
    asked: list[tuple[bool, Path | None]] = []

    async def demo(as_json: bool, logs: Path | None) -> DemoReport:
        asked.append((as_json, logs))
        return DemoReport(ok, 1, 0, 0, True, "stop", None, 1.0, ())

    monkeypatch.setattr(cli_demo, "run_demo_command", demo)
    assert _godwit("demo", "--json", "--logs", "x").exit_code == (0 if ok else 1)
    assert asked == [(True, Path("x"))]


def test_options_of_the_demo_are_not_those_of_figure3() -> None:
    refused = _godwit("demo", "--json", "figure3")
    assert refused.exit_code == 2
    assert "behind its name" in refused.stderr


def test_figure3_plays_the_scene_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked: list[tuple[Scene, int, Path | None]] = []

    def play(scene: Scene, repeat: int, logs: Path | None) -> Figure3Report:
        asked.append((scene, repeat, logs))
        return _report(1)

    monkeypatch.setattr(cli_demo, "_play", play)
    plot = tmp_path / "figure3.svg"
    words = ("--repeat", "3", "--ssd-mb-per-s", "20", "--dram-mb-per-s", "100", "--plot", str(plot))
    result = _godwit("demo", "figure3", "--json", *words)
    assert result.exit_code == 0
    assert asked == [(Scene(emulated=Emulated(20.0, 100.0)), 3, None)]
    assert set(json.loads(result.stdout)["policies"]) == set(POLICIES)
    assert plot.read_text().startswith("<?xml")
    assert "live_migration" in _godwit("demo", "figure3").stdout


def test_answers_that_differ_end_figure3_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_demo, "_play", lambda *_: _report(1, 2))
    result = _godwit("demo", "figure3")
    assert result.exit_code == 1
    assert "not the same in all runs" in result.stdout


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")

    def play(*_: object) -> Figure3Report:
        raise AssertionError("it was begun")

    monkeypatch.setattr(cli_demo, "_play", play)
    refused = _godwit("demo", "figure3", "--plot", str(tmp_path / "x.doc"))
    assert refused.exit_code == 2
    assert ".png" in refused.stderr

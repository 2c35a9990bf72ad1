"""From tasks to a report: means, ratios, and what was published beside ours."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import isnan
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from godwit.cli_sim_tables import show_report
from godwit.errors import ConfigError
from godwit.scenarios import play as playing
from godwit.scenarios.plan import Options, Sweep, plan, rows_of, tasks_of
from godwit.scenarios.play import RunFailedError, Task, play
from godwit.scenarios.plot import draw
from godwit.scenarios.read import read_raw, scenario_of
from godwit.scenarios.report import ContentionRow, FleetRow, Report, make_report
from godwit.sim.metrics import Metrics
from tests.scenarios.small import FLEET, TOML

Say = Callable[[Task], Metrics]


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """Write a scenario's file, whose name is returned."""

    def write(text: str) -> str:
        path = tmp_path / "own.toml"
        path.write_text(text)
        return str(path)

    return write


Own = Callable[[str], str]


def _metrics(**figures: float) -> Metrics:
    return Metrics(**{**dict.fromkeys(Metrics.__struct_fields__, 0.0), **figures})


def _report(options: Options, say: Say) -> Report:
    """A report of made-up figures."""
    raw = read_raw(options.scenario)
    cells = plan(raw, options)
    tasks, places = tasks_of(cells, options)
    return make_report(
        scenario_of(raw, options.overrides), options, rows_of(cells, places, [say(task) for task in tasks])
    )


def _contention(task: Task) -> Metrics:
    is_slow = ("machines.box.ssd_gb_per_s", 1) in task.overrides
    times = (3 if task.policy == "random" else 1) * (2 if is_slow and task.policy == "random" else 1)
    return _metrics(startup_p99_s=times * (1 + task.seed), requests=60, moves=task.seed, ssd_reads=0)


def test_means_and_paired_ratios(own: Own) -> None:
    report = _report(Options(own(TOML), seeds=(0, 1, 2)), _contention)
    assert [row.policy for row in report.rows] == ["random", "live_migration"] * 2
    row = report.rows[0]
    assert isinstance(row, ContentionRow)
    assert (row.dataset, row.rate, row.p99_s, row.moves) == ("lognormal", 0.1, 6.0, 1.0)
    assert row.p99_over_live is not None
    assert (row.p99_over_live.mean, row.p99_over_live.low, row.p99_over_live.high) == (3, 3, 3)
    # Nothing was read from SSD, so that there is no ratio.
    assert row.ssd_reads_over_live is not None
    assert isnan(row.ssd_reads_over_live.mean)
    assert row.intervals["startup_p99_s"].low < 6 < row.intervals["startup_p99_s"].high


def test_there_is_no_ratio_without_live_migration(own: Own) -> None:
    row = _report(Options(own(TOML), ("random",)), _contention).rows[0]
    assert isinstance(row, ContentionRow)
    assert row.p99_over_live is None


def test_published_figures_stand_beside_ours_and_disagreements_are_said(own: Own) -> None:
    report = _report(Options(own(TOML), seeds=(0, 1), sweep=Sweep.EACH), _contention)
    assert [row.published for row in report.rows] == [
        None,
        None,
        {"p99_over_live": 1000, "requests": 60},
        None,
    ]
    ratio, requests = report.beside
    assert (ratio.figure, ratio.published, ratio.low, ratio.high) == ("p99_over_live", 1000, 3, 6)
    assert requests.agrees
    assert report.disagreements == [
        "lognormal at 0.2/s, random: p99_over_live was published as 1000, ours is 3 to 6 over 2 seeds and 3 "
        "settings"
    ]


def _fleet(task: Task) -> Metrics:
    unplanned = {"reactive": 50, "window": 30, "oracle": 10}[task.policy]
    return _metrics(unplanned=unplanned, moves=5, latency_mean_s=70, latency_p99_s=90, wasted_s=7)


def test_how_far_a_policy_gets_to_the_oracle(own: Own) -> None:
    report = _report(Options(own(FLEET), has_ablations=True), _fleet)
    rows = [row for row in report.rows if isinstance(row, FleetRow)]
    assert [(row.policy, row.closes) for row in rows] == [("reactive", 0), ("window", 0.5), ("oracle", 1)]
    row = rows[1]
    assert (row.mean_latency_s, row.p99_latency_s, row.unplanned, row.planned, row.wasted_s) == (
        70,
        90,
        30,
        5,
        7,
    )
    assert [row.setting for row in report.ablations] == [
        {"policies.window.early.hysteresis_s": 0},
        {"policies.window.early.hysteresis_s": 20},
    ]


def test_the_json_has_what_the_issue_wants(own: Own) -> None:
    report = msgspec.json.decode(msgspec.json.encode(_report(Options(own(TOML)), _contention)))
    times, counts = {"p50_s", "p99_s", "p99_over_live"}, {"moves", "kills", "ssd_reads"}
    wanted = {"dataset", "rate", "policy", "published", *times, *counts}
    assert all(wanted <= row.keys() for row in report["rows"])
    assert set(report["rows"][0]["p99_over_live"]) == {"mean", "low", "high"}
    one_seed = msgspec.json.encode(_report(Options(own(FLEET), seeds=(0,)), _fleet))
    wanted = {"policy", "mean_latency_s", "p99_latency_s", "unplanned", "planned", "wasted_s"}
    assert all(wanted <= row.keys() for row in msgspec.json.decode(one_seed)["rows"])


@pytest.mark.parametrize(("text", "say"), [(TOML, _contention), (FLEET, _fleet)])
def test_people_see_all_policies(own: Own, text: str, say: Say) -> None:
    report = _report(Options(own(text), sweep=Sweep.EACH, has_ablations=True), say)
    console = Console(width=100, record=True, file=None)
    with console.capture() as capture:
        show_report(console, report)
    shown = capture.get()
    assert all(row.policy in shown for row in report.rows)
    assert ("disagrees:" in shown) is bool(report.disagreements)


@pytest.mark.parametrize(("text", "say"), [(TOML, _contention), (FLEET, _fleet)])
def test_a_picture(own: Own, text: str, say: Say, tmp_path: Path) -> None:
    draw(_report(Options(own(text), has_ablations=True), say)).savefig(tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


# --- tasks ------------------------------------------------------------------------------------------------


def test_tasks_are_simulated_in_their_order(own: Own) -> None:
    name = own(TOML)
    tasks = [Task(name, policy, seed) for policy in ("random", "live_migration") for seed in (0, 1)]
    done: list[None] = []
    with ThreadPoolExecutor(2) as pool:
        found = play(tasks, pool, lambda: done.append(None))
        again = play(tasks[1:2], pool)
    assert len(done) == 4
    assert all(figures.requests == 30 and figures.errors == 0 for figures in found)
    assert again == found[1:2]
    assert found[0].startup_p99_s != found[1].startup_p99_s


def test_a_run_that_fails_says_how_to_see_it_again(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: object) -> None:  # noqa: ARG001 -- as simulate is
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(playing, "simulate", fail)
    task = Task(own(TOML), "random", 3, (("workload.source", "gsm8k"), ("workload.cv", 2)))
    task = Task(task.scenario, "random", 3, (("workload.cv", 2), ("about", "a b")))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RunFailedError) as caught:
        play([task], pool)
    message = caught.value.message
    assert "policy random, seed 3: ZeroDivisionError: a bug" in message
    assert "--policy random --first-seed 3 --seeds 1 --set workload.cv=2 --set 'about=\"a b\"'" in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_wrong_settings_are_no_bug(own: Own) -> None:
    task = Task(own(TOML), "bla", 0)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="no policy 'bla'"):
        play([task], pool)

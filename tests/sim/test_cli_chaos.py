"""`godwit sim chaos`: what it prints, and that a failing seed says how to play it again."""

import json

import pytest
from typer.testing import CliRunner

from godwit.cli import app
from godwit.cli_chaos import CHUNK
from godwit.sim.mutations import mutated

CHAOS = ["sim", "chaos"]


def test_json_begins_with_seeds_and_failures() -> None:
    result = CliRunner().invoke(app, [*CHAOS, "--seeds", "3", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert list(report)[:2] == ["seeds", "failures"]
    assert (report["seeds"], report["failures"]) == (3, 0)
    assert report["events"] > 100 and report["counts"]["request finished"] > 0


def test_a_failing_seed_says_how_to_play_it_again() -> None:
    with mutated("deliver twice"):
        result = CliRunner().invoke(app, [*CHAOS, "--seeds", str(CHUNK), "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["failures"] == len(report["failed"]) > 0
    seed, problem = report["failed"][0]
    assert problem.startswith("BrokenError: ")
    assert f"godwit sim chaos --seed {seed} --trace" in result.stderr


def test_a_trace_ends_with_what_broke() -> None:
    with mutated("deliver twice"):
        failed = CliRunner().invoke(app, [*CHAOS, "--seeds", str(CHUNK), "--json"])
        seed = json.loads(failed.stdout)["failed"][0][0]
        result = CliRunner().invoke(app, [*CHAOS, "--seed", str(seed), "--trace"])
    assert result.exit_code == 1
    assert "joins the head" in result.stdout and "BROKEN: BrokenError: " in result.stdout


def test_a_trace_is_of_one_seed() -> None:
    result = CliRunner().invoke(app, [*CHAOS, "--trace"])
    assert result.exit_code == 2 and "--seed" in result.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_mutations_that_are_not_found_are_a_failure(jobs: int) -> None:
    result = CliRunner().invoke(app, [*CHAOS, "--mutations", "--seeds", "1", "--json", "--jobs", str(jobs)])
    assert result.exit_code == 1
    found = json.loads(result.stdout)["mutations"]
    assert any(one["after_seeds"] is None for one in found)

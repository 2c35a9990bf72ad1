"""`godwit sim` at the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from godwit.cli import app
from tests.scenarios.small import FLEET, TOML


def _godwit(*words: str) -> Result:
    return CliRunner().invoke(app, ["sim", *words])


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.toml"
    path.write_text(TOML)
    return str(path)


def test_the_built_in_scenarios_are_listed() -> None:
    result = _godwit("--list")
    assert result.exit_code == 0
    assert "contention: ServerlessLLM's cluster experiment" in result.output
    assert "volunteer-fleet" in _godwit("--help").output


def test_a_wrong_name_or_key_ends_with_status_2() -> None:
    result = _godwit("bla")
    assert result.exit_code == 2
    assert "choose one of: azure-code" in result.output
    result = _godwit("contention", "--set", "workload.rate=1")
    assert result.exit_code == 2
    assert "workload.rate: no such key" in result.output


def test_processes_give_what_the_seed_decides(own: str, tmp_path: Path) -> None:
    words = (own, "--seeds", "2", "--set", "workload.rate_per_s=0.2", "--json")
    result = _godwit(*words, "--jobs", "2", "--plot", str(tmp_path / "out.png"))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["seeds"] == 2
    assert [row["policy"] for row in report["rows"]] == ["random", "live_migration"]
    assert all(row["intervals"]["requests"]["mean"] == 60 for row in report["rows"])
    assert (tmp_path / "out.png").is_file()
    assert json.loads(_godwit(*words, "--jobs", "1").stdout) == report


def test_a_fleet_and_options_in_front(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    result = _godwit("--seeds", "1", "--policy", "reactive", "--policy", "window", str(path))
    assert result.exit_code == 0, result.output
    assert "reactive" in result.output
    assert "window" in result.output
    assert "oracle" not in result.output


def test_a_picture_needs_a_known_format(own: str) -> None:
    result = _godwit(own, "--plot", "out.bla")
    assert result.exit_code == 2
    assert "--plot" in result.output


def test_ctrl_c_ends_everything_at_once(own: str) -> None:
    words = (own, "--set", "workload.minutes=100000", "--jobs", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "godwit", "sim", *words], stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while len(children.read_text().split()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        # To the whole group, as a terminal does.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    deadline = time.monotonic() + 10
    while _is_there(process.pid):
        assert time.monotonic() < deadline, "some of its processes go on"
        time.sleep(0.05)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

"""The command line: what it starts it stops, and what is wrong it explains."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from godwit.cli import app

DEADLINE_S = 60.0
SERVE = (sys.executable, "-m", "godwit", "serve", "--engine", "fake", "--port", "0")


class Serving:
    """`godwit serve` in a process of its own, once it is ready."""

    def __init__(self, logs: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*SERVE, "--logs", str(logs), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GODWIT_JOIN_TOKEN": "right"},
        )
        assert self.process.stderr is not None
        shown = ""
        while not (found := re.search(r"serves on (http://\S+)/v1", shown)):
            line = self.process.stderr.readline()
            assert line, shown
            shown += line
        self.url = found[1]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.workers = [os.pidfd_open(int(child)) for child in children]

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def workers_have_ended(self) -> bool:
        """Whether all worker processes are gone, or will be within the deadline."""
        return all(select.select([worker], [], [], DEADLINE_S)[0] for worker in self.workers)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for worker in self.workers:
            os.close(worker)


def _godwit(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "godwit", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    one = Serving(tmp_path)
    yield one
    one.close()


@pytest.fixture
def godwit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process, without the caller's secrets."""
    for name in ("GODWIT_API_KEYS", "GODWIT_JOIN_TOKEN", "GODWIT_ADMIN_KEY", "GODWIT_URL"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, words, input="")

    return invoke


def test_ctrl_c_stops_everything(serving: Serving) -> None:
    assert len(serving.workers) == 2
    serving.process.send_signal(signal.SIGINT)
    assert serving.wait() == 0
    assert serving.workers_have_ended()


def test_nothing_of_a_server_is_left_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "godwit", "serve", "--engine", "fake", "--workers", "1", "--port", "0"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as serving:
        assert serving.stderr is not None
        while "curl" not in (line := serving.stderr.readline()):
            assert line
        assert list(tmp_path.glob("godwit-*/w1.log"))
        serving.send_signal(signal.SIGINT)
    assert serving.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_head_that_is_killed(serving: Serving) -> None:
    serving.process.kill()
    serving.wait()
    assert serving.workers_have_ended()


def test_status_lists_workers_for_programs_and_for_people(
    serving: Serving, godwit: Callable[..., Result]
) -> None:
    status = json.loads(godwit("status", "--json", "--url", serving.url).stdout)
    assert [worker["name"] for worker in status["workers"]] == ["w1", "w2"]
    table = godwit("status", "--url", serving.url).stdout
    assert "w1" in table
    assert "0/4" in table


def test_what_moves_cost_is_listed_for_programs_and_for_people(
    tmp_path: Path, godwit: Callable[..., Result]
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"models": {"fake": {"prefill_tps": {"value": 1234}}}}')
    serving = Serving(tmp_path, "--profile", str(profile))
    try:
        costs = json.loads(godwit("costs", "--json", "--url", serving.url).stdout)
        table = godwit("costs", "--url", serving.url).stdout
    finally:
        serving.close()
    assert [one["model"] for one in costs["servers"]] == [None, "fake"]
    assert costs["servers"][1]["prefill_tps"] == {"value": 1234, "n": 0, "provenance": "assumed"}
    assert costs["pairs"][0]["transfer_overhead_s"]["value"] == 0.5
    assert "1,234" in table
    assert "No move has been predicted" in table


def test_a_drained_worker_leaves_and_its_process_ends(
    serving: Serving, godwit: Callable[..., Result]
) -> None:
    assert godwit("drain", "w2", "--url", serving.url).exit_code == 0
    status = json.loads(godwit("status", "--json", "--url", serving.url).stdout)
    assert [worker["name"] for worker in status["workers"]] == ["w1"]
    assert select.select([serving.workers[1]], [], [], DEADLINE_S)[0]


def test_what_the_head_does_not_know_is_said(serving: Serving, godwit: Callable[..., Result]) -> None:
    unknown_request = godwit("migrate", "req-0", "--to", "w2", "--url", serving.url)
    assert (unknown_request.exit_code, "req-0" in unknown_request.stderr) == (1, True)
    unknown_method = godwit("migrate", "req-0", "--method", "swim", "--url", serving.url)
    assert (unknown_method.exit_code, "split" in unknown_method.stderr) == (2, True)
    unknown_worker = godwit("drain", "w9", "--url", serving.url)
    assert (unknown_worker.exit_code, "w1, w2" in unknown_worker.stderr) == (1, True)


@pytest.mark.parametrize("command", [("status",), ("costs",), ("migrate", "r", "--to", "w"), ("drain", "w")])
def test_without_a_head_it_says_how_to_start_one(
    command: tuple[str, ...], godwit: Callable[..., Result]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = godwit(*command, "--url", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert result.exit_code == 1
    assert "godwit serve" in result.stderr


def test_a_wrong_join_token_is_said(serving: Serving) -> None:
    result = _godwit("worker", "--engine", "fake", "--join", serving.url, GODWIT_JOIN_TOKEN="wrong")
    assert result.returncode == 1
    assert "join token" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = _godwit("serve", "--engine", "fake", "--port", "0", "--logs", str(tmp_path / "file"))
    assert result.returncode == 1
    assert f"cannot go to {tmp_path / 'file'}" in result.stderr


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words in (("serve", "--engine", "fake", "--logs", str(tmp_path)), ("head",)):
            result = _godwit(*words, "--port", port)
            assert result.returncode == 1
            assert f"port {port} on 127.0.0.1 is taken" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "--port", "99999"), "head.port"),
        (("serve", "--slots", "0"), "worker.slots"),
        (("serve", "--host", "0.0.0.0"), "GODWIT_JOIN_TOKEN"),
        (("head", "--host", "0.0.0.0"), "--insecure"),
        (("serve", "--model", "no-such-model"), "known: gemma3-270m, smollm2-135m"),
        (("serve", "--config", "/no/such/file.toml"), "/no/such/file.toml"),
        (
            ("serve", "--profile", "/no/such/profile.json"),
            "/no/such/profile.json: the profile cannot be read",
        ),
        (("head", "--profile", "/no/such/profile.json"), "/no/such/profile.json: the profile cannot be read"),
        (("serve", "--policy", "slowest"), "live_migration"),
        (("head", "--set", "hazard.family=gamma"), "hierarchical"),
        (("head", "--store", "/no/such/folder/x.sqlite", "--port", "0"), "head.store"),
        (("head", "--keep-alive", "0"), "head.keep_alive_s"),
        (("worker",), "--join"),
        (("worker", "--join", "http://127.0.0.1:1", "--name", "a b"), "worker.name"),
        (("worker", "--join", "127.0.0.1:8080", "--engine", "fake"), "'127.0.0.1:8080' is no URL of a head"),
        (("worker", "--join", "http://127.0.0.1:99999", "--engine", "fake"), "is no URL of a head"),
    ],
)
def test_a_wrong_setting_ends_with_status_2(
    words: tuple[str, ...], message: str, godwit: Callable[..., Result]
) -> None:
    result = godwit(*words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[head]\npolicy = 'slowest'", "live_migration"),
        ("[head]\nhots = 'x'", "head.hots"),
        ("[[models]]\nname = 'mine'\npath = '/no/such.gguf'", "/no/such.gguf"),
        ("[[models]]\nname = 'mine'\nengine = 'vllm'\npath = '/no/such'", "there is no folder /no/such"),
    ],
)
def test_a_wrong_line_in_the_file_is_named(
    text: str, message: str, tmp_path: Path, godwit: Callable[..., Result]
) -> None:
    config = tmp_path / "godwit.toml"
    config.write_text(text)
    result = godwit("serve", "--config", str(config))
    assert result.exit_code == 2
    assert message in result.stderr


def test_supervised_is_not_for_people(godwit: Callable[..., Result]) -> None:
    result = godwit("worker", "--supervised")
    assert result.exit_code == 2
    assert "godwit serve" in result.stderr


def test_version(godwit: Callable[..., Result]) -> None:
    assert re.fullmatch(r"godwit \d+\.\d+\.\d+\n", godwit("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "wrong"), [(("--contexts", "8,64"), "at least 16 tokens"), (("--links", "0"), "at least 1")]
)
def test_bench_crossover_says_which_numbers_it_takes(
    arguments: tuple[str, str], wrong: str, godwit: Callable[..., Result]
) -> None:
    result = godwit("bench", "crossover", *arguments)
    assert result.exit_code == 2
    assert wrong in result.stderr

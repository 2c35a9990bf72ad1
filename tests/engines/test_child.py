"""Servers as child processes: they end when they are told to, and when whoever started them is gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from godwit.engines import guard
from godwit.engines.child import ServerProcess, answers, free_port, parse_environ
from godwit.engines.pinning import pin
from godwit.errors import ConfigError, ModelLoadError

DEADLINE_S = 30.0
# A server with a child of its own, whose pid it writes to a file.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open(sys.argv[1], "w").write(str(child.pid) + "\\n")
time.sleep(1000)
"""


def is_there(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(is_so: object) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def started(note: Path) -> tuple[ServerProcess, int]:
    """A server that runs, and its child's process id."""
    server = ServerProcess((sys.executable, "-c", FAMILY, str(note)), {})
    server.wait_until(lambda: note.is_file() and note.read_text().endswith("\n"), DEADLINE_S)
    return server, int(note.read_text())


def test_stop_ends_the_server_and_its_children(tmp_path: Path) -> None:
    server, grandchild = started(tmp_path / "pid")
    assert server.is_running
    pid = server.pid
    server.stop()
    wait_for(lambda: not is_there(pid) and not is_there(grandchild))
    assert not server.is_running


def test_the_children_of_a_killed_server_end_too(tmp_path: Path) -> None:
    server, grandchild = started(tmp_path / "pid")
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not is_there(grandchild) and not server.is_running)
    server.stop()


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.engines.test_child import started\n"
        "server, _ = started(Path(sys.argv[1]))\nprint(server.pid, flush=True)\ntime.sleep(1000)"
    )
    owner = subprocess.Popen((sys.executable, "-c", code, str(note)), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: not is_there(pid) and not is_there(int(note.read_text())))


def test_a_session_is_pinned_with_all_its_processes(tmp_path: Path) -> None:
    server, grandchild = started(tmp_path / "pid")
    mine = os.sched_getaffinity(0)
    core = max(mine)
    pin(server.pid, {core})
    assert os.sched_getaffinity(server.pid) == os.sched_getaffinity(grandchild) == {core}
    assert os.sched_getaffinity(0) == mine
    server.stop()


def test_one_that_ends_at_once_is_an_error_with_its_last_words() -> None:
    server = ServerProcess((sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"), {})
    with pytest.raises(ModelLoadError, match="status 3:\nno such flag"):
        server.wait_until(lambda: False, DEADLINE_S)


def test_one_that_is_too_slow_is_stopped() -> None:
    server = ServerProcess((sys.executable, "-c", "import time; time.sleep(1000)"), {})
    pid = server.pid
    with pytest.raises(ModelLoadError, match="not ready"):
        server.wait_until(lambda: False, 0.0)
    wait_for(lambda: not is_there(pid))


def test_a_program_that_does_not_exist_is_an_error() -> None:
    server = ServerProcess(("no-such-program-here",), {})
    with pytest.raises(ModelLoadError, match="no-such-program-here"):
        server.wait_until(lambda: False, DEADLINE_S)


def test_whatever_goes_wrong_while_it_is_waited_for_ends_it() -> None:
    server = ServerProcess((sys.executable, "-c", "import time; time.sleep(1000)"), {})
    pid = server.pid
    with pytest.raises(ZeroDivisionError):
        server.wait_until(lambda: bool(1 / 0), DEADLINE_S)
    wait_for(lambda: not is_there(pid))


def test_a_log_that_grows_too_long_is_emptied_and_written_on(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    code = (
        f"import pathlib, time\nprint('x' * {guard.MAX_LOG_BYTES}, flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "print('last', flush=True)\ntime.sleep(1000)"
    )
    server = ServerProcess((sys.executable, "-c", code), {})
    server.wait_until(lambda: server.log_bytes > guard.MAX_LOG_BYTES, DEADLINE_S)
    wait_for(lambda: server.log_bytes == 0)
    go_on.touch()
    wait_for(lambda: server.log_bytes > 0)
    assert server.stop() == "last\n"


def test_nothing_answers_on_a_free_port() -> None:
    assert not answers(f"http://127.0.0.1:{free_port()}/health")


def test_environment_is_parsed_like_a_shells() -> None:
    assert parse_environ("A=1 B='two words' C=") == {"A": "1", "B": "two words", "C": ""}
    with pytest.raises(ConfigError, match="'A' is no NAME=VALUE"):
        parse_environ("A")

"""A server as a child process: started, waited for, and ended with everything that it has started."""

import fcntl
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from http.client import HTTPException
from pathlib import Path

from godwit.engines.pinning import pin
from godwit.errors import ConfigError, ModelLoadError

_POLL_S = 0.2
_ASK_S = 2.0
_STOP_S = 20.0
_TAIL_BYTES = 4000


class ServerProcess:
    """Runs `command` under `guard.py`, with its output in a file that is shown where it fails.

    Its threads are kept to `cores` until it is ready (None: to none).
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], cores: set[int] | None = None
    ) -> None:
        """Start it; ModelLoadError where there is no such program."""
        self._cores = cores
        self._log = tempfile.TemporaryFile(prefix="godwit-server-")  # noqa: SIM115 -- closed by `stop`
        # So that it can be cut while it is written to: `guard.py` keeps it short.
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        guard = Path(__file__).with_name("guard.py")
        self._process = subprocess.Popen(
            (sys.executable, "-P", str(guard), *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    @cached_property
    def pid(self) -> int:
        """The process id of the command itself; ModelLoadError where it could not be run."""
        line = b"" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise ModelLoadError(f"the server could not be started:\n{self.stop()}")
        return int(line)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def log_bytes(self) -> int:
        """How long the file with its output is now."""
        return os.fstat(self._log.fileno()).st_size

    def wait_until(
        self, is_ready: Callable[[], bool], timeout_s: float, cancelled: threading.Event | None = None
    ) -> None:
        """Block until it is ready; ModelLoadError with its last lines where it ends first, or is too slow.

        The same as soon as `cancelled` is set. Whatever goes wrong, it is stopped.
        """
        try:
            self._wait_until(is_ready, timeout_s, cancelled or threading.Event())
        except BaseException:
            self.stop()
            raise

    def _wait_until(self, is_ready: Callable[[], bool], timeout_s: float, cancelled: threading.Event) -> None:
        end_s = time.monotonic() + timeout_s
        while not self._is_ready(is_ready):
            if not self.is_running:
                said = self.stop()
                raise ModelLoadError(f"the server ended with status {self._process.returncode}:\n{said}")
            if time.monotonic() > end_s:
                said = self.stop()
                raise ModelLoadError(f"the server was not ready after {timeout_s:.0f} s:\n{said}")
            if cancelled.wait(_POLL_S):
                raise ModelLoadError("the load was cancelled: its server was stopped before it was ready")

    def _is_ready(self, is_ready: Callable[[], bool]) -> bool:
        if self._cores is not None:
            # Every time, for some move their threads more than once while they start.
            pin(self.pid, self._cores)
        return is_ready()

    def stop(self) -> str:
        """End it, if need be by force; returns the last lines that it wrote."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log.closed:
            return ""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = self._log.read().decode(errors="replace")
        self._log.close()
        return text


def free_port() -> int:
    """A port of this machine that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a GET of `url` gives status 200 within two seconds."""
    try:
        fetch(url)
    except OSError:
        return False
    return True


def is_up(process: ServerProcess | None, url: str) -> bool:
    """Whether a server still answers, told within seconds; `process` is None for one that is no child."""
    return (process is None or process.is_running) and answers(f"{url}/health")


def fetch(url: str) -> bytes:
    """What a GET of `url` gives; OSError where it fails."""
    try:
        with urllib.request.urlopen(url, timeout=_ASK_S) as answer:
            body: bytes = answer.read()
            return body
    except (HTTPException, ValueError) as error:  # what answers speaks no HTTP; this is no URL
        raise OSError(f"{url}: {error!r}") from error


def parse_environ(text: str) -> dict[str, str]:
    """The variables of "A=1 B='two words'"; ConfigError for anything else."""
    pairs = [word.partition("=") for word in shlex.split(text)]
    if wrong := [name for name, is_there, _ in pairs if not is_there or not name]:
        raise ConfigError(f"engine option env: {wrong[0]!r} is no NAME=VALUE")
    return {name: value for name, _, value in pairs}

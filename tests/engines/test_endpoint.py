"""An engine's server is reached, or nothing of it stays: however it fails, and when nobody waits any more."""

import sys
import threading

import pytest

from godwit.engines.child import ServerProcess, answers
from godwit.engines.endpoint import reached
from godwit.errors import ModelLoadError
from tests.engines.test_child import DEADLINE_S, is_there, wait_for

SILENT = "import time; time.sleep(1000)"
HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Starting:
    """Starts a child once, and remembers it."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.pid = 0

    def __call__(self, port: int) -> ServerProcess:
        process = ServerProcess((sys.executable, "-c", self._code, str(port)), {})
        self.pid = process.pid
        return process


def test_a_child_is_reached_and_stopped_where_it_is_not_what_is_needed() -> None:
    start = Starting(HEALTHY)
    with (
        pytest.raises(ZeroDivisionError),
        reached("server", None, start, DEADLINE_S, threading.Event()) as server,
    ):
        assert answers(f"{server.url}/health")
        assert server.pid == start.pid
        1 / 0  # noqa: B018 -- what is raised is all that matters
    wait_for(lambda: not is_there(start.pid))


def test_a_child_that_is_not_waited_for_any_more_is_stopped_at_once() -> None:
    start, cancelled = Starting(SILENT), threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    with (
        pytest.raises(ModelLoadError, match="cancelled"),
        reached("server", None, start, 10 * DEADLINE_S, cancelled),
    ):
        pass
    wait_for(lambda: not is_there(start.pid))


def test_a_server_elsewhere_must_answer() -> None:
    with (
        pytest.raises(ModelLoadError, match=r"no server answers at http://127\.0\.0\.1:1: start it, or drop"),
        reached("server", "http://127.0.0.1:1/", Starting(SILENT), DEADLINE_S, None),
    ):
        pass

"""What processes write to their logs."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

SECRET = "quite-secret"
Head = subprocess.Popen[str]


@pytest.fixture
def head() -> Iterator[Head]:
    """A head that writes to a pipe."""
    command = [sys.executable, "-m", "godwit", "head", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.terminate()


def url_of(head: Head) -> str:
    assert head.stderr is not None
    return head.stderr.readline().split("listens on ")[1].split(";")[0]


def test_log_lines_are_json_and_quote_no_client(head: Head) -> None:
    """A header with a space too many holds its key all the same."""
    port = int(url_of(head).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(f"GET /v1/models HTTP/1.1\r\nAuthorization : Bearer {SECRET}\r\n\r\n".encode())
        assert b" 400 " in client.recv(1000)
    head.terminate()
    assert head.stderr is not None
    lines = head.stderr.read().splitlines()
    assert any("BadHttpMessage" in json.loads(line)["reason"] for line in lines)
    assert SECRET not in "".join(lines)


def test_a_log_that_cannot_be_written_stops_nothing(head: Head) -> None:
    url = url_of(head)
    assert head.stderr is not None
    head.stderr.close()
    for _ in range(2):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
            assert answer.status == 200

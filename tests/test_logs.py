"""What processes write to their logs."""

import json
import socket
import subprocess
import sys

SECRET = "quite-secret"


def test_log_lines_are_json_and_quote_no_client() -> None:
    """A header with a space too many holds its key all the same."""
    with subprocess.Popen(
        [sys.executable, "-m", "godwit", "head", "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as head:
        assert head.stderr is not None
        try:
            url = head.stderr.readline().split("listens on ")[1].split(";")[0]
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as client:
                client.sendall(f"GET /v1/models HTTP/1.1\r\nAuthorization : Bearer {SECRET}\r\n\r\n".encode())
                assert b" 400 " in client.recv(1000)
        finally:
            head.terminate()
        lines = head.stderr.read().splitlines()
    assert lines
    assert any("BadHttpMessage" in json.loads(line)["reason"] for line in lines)
    assert SECRET not in "".join(lines)

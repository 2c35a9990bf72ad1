"""Run as a script with a command: ends the command and all its children once this script's stdin closes.

It prints the command's process id; what the command prints goes to stderr.
So a server does not outlive the worker that started it, however the worker ends.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time

GRACE_S = 10.0
LOOK_S = 5.0
MAX_LOG_BYTES = 16 << 20


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_with_stdin(process: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _signal(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGKILL)


def _keep_short(log: int) -> None:
    """Empty a file whenever it has grown too long: servers write some lines for every request."""
    while stat.S_ISREG((told := os.fstat(log)).st_mode):
        if told.st_size > MAX_LOG_BYTES:
            os.ftruncate(log, 0)
        time.sleep(LOOK_S)  # nothing tells that a file grows


def main() -> int:
    """Run the command of the arguments to its end; its exit status."""
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    print(process.pid, flush=True)
    threading.Thread(target=_end_with_stdin, args=(process,), daemon=True).start()
    threading.Thread(target=_keep_short, args=(sys.stderr.fileno(),), daemon=True).start()
    status = process.wait()
    # Its children hold the device, and without it they are of no use.
    _signal(process.pid, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""A head in a process of its own, for `relay.py`: settings on stdin, its URL as the first line of its output.

It stops when its stdin closes, so it cannot outlive the benchmark however that ends.
"""

import sys

import msgspec

from godwit.config import Settings
from godwit.head import run_head
from godwit.processes import run, with_parent


def main() -> None:
    """Serve until the parent ends or a signal comes."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    run(with_parent(run_head(settings, lambda url: print(url, flush=True))))


if __name__ == "__main__":
    main()

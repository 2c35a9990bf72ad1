"""A small `godwit bench crossover` with fake engines, in a process of its own: it moves into a namespace.

`python -m tests.bench.crossoverprocess veth` prints "holders" and the ids of the processes that keep the
workers' namespaces, then the report in JSON; with `paced` "holders" alone.
"""

import sys

import msgspec
import uvloop

from godwit.bench.crossover import CrossoverOptions, run_crossover
from godwit.bench.links import open_links
from godwit.bench.netns import VethLinks
from tests.cluster.harness import fake

CONTEXTS = (200, 400)
LINKS_MBIT = (0.2, None)


def main(kind: str) -> None:
    """Two links, slow and as it is, by two contexts: a fake's token takes 2.6 ms of the slow one."""
    model = fake(decode_s=0.01, prefill_tokens_per_s=4000.0)
    options = CrossoverOptions(CONTEXTS, LINKS_MBIT, repeat=1, live_repeat=1, model=model)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with open_links(say, paced=kind == "paced") as links:
        print("holders", *(links.holders if isinstance(links, VethLinks) else ()), flush=True)
        report = uvloop.run(run_crossover(options, links, say))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

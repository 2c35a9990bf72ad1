"""A small `godwit bench crossover` with fake engines, in a process of its own: it moves into a namespace.

Its first line is "namespaces …" with the ids of the processes that keep them, or "paced …" with the reason;
the last one is the report in JSON.
"""

import sys

import msgspec
import uvloop

from godwit.bench.crossover import CrossoverOptions, run_crossover
from godwit.bench.links import open_links
from godwit.bench.netns import VethLinks
from tests.cluster.harness import fake


def main(kind: str) -> None:
    """Two links (slow, and as it is) and two contexts; `kind` is "veth" or "paced"."""
    said: list[str] = []
    model = fake(decode_s=0.01, prefill_tokens_per_s=4000.0)
    # 64 bytes a token: at 0.1 Mbit/s about 200 tokens a second.
    options = CrossoverOptions((32, 64), (0.1, None), repeat=2, live_repeat=1, model=model)
    with open_links(said.append, paced=kind == "paced") as links:
        holders = links.holders if isinstance(links, VethLinks) else []
        print("namespaces" if holders else f"paced {said}", *holders, flush=True)
        report = uvloop.run(run_crossover(options, links, lambda text: print(text, file=sys.stderr)))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Whatever befalls a cluster: the unmoved run's tokens or an error with a reason; nothing leaks or waits."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from godwit.sim.chaos import play_seed
from godwit.sim.faults import WEIGHTS

NUM_SEEDS = int(os.environ.get("GODWIT_SEEDS", "500"))
"""More of them look harder: `godwit sim chaos --seeds 10000` uses all cores."""
_DIGEST = """
import hashlib
from godwit.sim.chaos import play_seed
digest = hashlib.sha256()
for seed in range(25):
    play_seed(seed, lambda line: digest.update(line.encode()))
print(digest.hexdigest())
"""


def test_many_seeds() -> None:
    counts: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        played = play_seed(seed)
        assert played.problem is None, f"godwit sim chaos --seed {seed} --trace: {played.problem}"
        counts.update(played.counts)
    least = NUM_SEEDS // 500
    never = [kind for kind in WEIGHTS if counts[f"fault {kind}"] < least]
    assert not never, f"these faults were to happen: {never}"
    for method in ("tokens", "kv", "split"):
        assert counts[f"move done {method}"] >= 50 * least
        assert counts[f"move failed {method}"] >= 20 * least
    for kind in ("Load", "Unload", "Preempt", "Leave", "Interrupt", "LoadFailed"):
        assert counts[f"decision {kind}"] >= least
    assert counts["failover"] >= 100 * least
    assert counts["request finished"] > 10 * counts["request failed"]


def test_a_seed_has_the_same_trace_again() -> None:
    for seed in range(5):
        first: list[str] = []
        second: list[str] = []
        assert play_seed(seed, first.append) == play_seed(seed, second.append) == play_seed(seed)
        assert first == second and len(first) > 100


def test_a_trace_says_when_who_and_what() -> None:
    lines: list[str] = []
    for seed in range(5):
        play_seed(seed, lines.append)
    text = "\n".join(lines)
    assert "w0       joins the head" in text
    assert "client   r0 asks for up to" in text
    assert " head     <- w0: Tokens r" in text
    assert " !! !        " in text


@pytest.mark.parametrize("count", [3])
def test_a_trace_is_the_same_byte_for_byte_under_any_hash_seed(count: int) -> None:
    digests = set()
    for seed in range(count):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-c", _DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1

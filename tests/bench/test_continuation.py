"""The continuation benchmark moves real requests by each method, and notices one that goes on otherwise."""

import asyncio
import importlib.util

import pytest

from godwit.bench.continuation import METHODS, MethodRow, Share, report_of, run_continuation

REPEAT = 1


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_every_method_moves_its_requests_and_those_by_kv_are_identical() -> None:
    said: list[str] = []
    # A move that fails, falls back to tokens or does not happen ends the run with a GodwitError.
    report = asyncio.run(run_continuation(REPEAT, "smollm2-135m", said.append))
    assert [row.method for row in report.methods] == list(METHODS)
    assert all(share.of == REPEAT for row in report.methods for share in (row.greedy, row.seeded))
    assert len(said) == len(METHODS) * 2 * REPEAT
    exact = next(row for row in report.methods if row.method == "kv")
    assert (exact.greedy, exact.seeded) == (Share(REPEAT, REPEAT), Share(REPEAT, REPEAT))
    assert report.ok


@pytest.mark.parametrize(
    ("method", "greedy", "seeded", "ok"),
    [("kv", 15, 14, False), ("kv", 14, 15, False), ("tokens", 3, 0, True), ("split", 0, 0, True)],
)
def test_only_a_request_that_moved_by_kv_must_be_identical(
    method: str, greedy: int, seeded: int, ok: bool
) -> None:
    all_ = Share(15, 15)
    rows = [MethodRow(name, all_, all_) for name in METHODS if name != method]
    rows.append(MethodRow(method, Share(greedy, 15), Share(seeded, 15)))
    assert report_of("m", rows).ok is ok

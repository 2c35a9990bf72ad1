"""`godwit calibrate` as a process, on fake engines: what it writes, and that nothing stays behind."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from godwit.cli_settings import check_head
from godwit.config import MoveSettings, Settings, WorkerSettings
from godwit.costs.constants import Constant
from godwit.profile import parse_profile, read_profile
from tests.cluster.harness import Cluster, fake, settings

pytestmark = pytest.mark.anyio
PREFILL_TPS, DECODE_S = 2000.0, 0.004
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
async def cluster(anyio_backend: object) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- its loop is needed
    """Two workers with known speeds; the second model's engine ships no KV."""
    models = (
        fake(prefill_tokens_per_s=PREFILL_TPS, decode_s=DECODE_S),
        fake("nokv", prefill_tokens_per_s=PREFILL_TPS, decode_s=DECODE_S, kv_layout=""),
    )
    async with Cluster(settings(*models, worker=WorkerSettings(slots=2))) as cluster:
        yield cluster


async def _start(url: str, *words: str, folder: Path) -> Process:
    out = str(folder / "profile.json")
    command = ("-m", "godwit", "calibrate", "--quick", "--url", url, "--out", out, *words)
    env = {**os.environ, "COLUMNS": "200"}
    return await asyncio.create_subprocess_exec(sys.executable, *command, env=env, stdout=PIPE, stderr=PIPE)


async def _run(url: str, *words: str, folder: Path) -> tuple[int | None, str, str]:
    """Exit status, output, and what was said beside it."""
    process = await _start(url, *words, folder=folder)
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def _is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def _check(constant: Constant | None, low: float, high: float, n: int) -> None:
    assert constant is not None and constant.measured is not None
    assert low <= constant.value <= high
    assert constant.measured.n >= n
    assert constant.measured.low <= constant.value
    assert constant.measured.high is None or constant.value <= constant.measured.high


async def test_all_constants_of_two_workers(cluster: Cluster, tmp_path: Path) -> None:
    status, out, err = await _run(cluster.url, "--json", "--model", "fake", folder=tmp_path)
    assert status == 0, err
    report: dict[str, Any] = json.loads(out)
    profile = read_profile(tmp_path / "profile.json")
    assert parse_profile(json.dumps(report["profile"])) == profile

    model = profile.models["fake"]
    # Noise only adds time; a machine under load adds much of it.
    _check(model.prefill_tps, PREFILL_TPS / 4, PREFILL_TPS * 1.5, 8)
    _check(model.recompute_overhead_s, 0, 0.5, 8)
    _check(model.prefill_loaded_tps, PREFILL_TPS / 8, PREFILL_TPS * 1.5, 8)
    # 64 bytes a token, and what comes with a range.
    _check(model.kv_bytes_per_token, 64 * 0.99, 64 * 1.1, 16)
    _check(model.destination_slowdown, 1.0, 100, 2)
    _check(model.source_slowdown, 0.2, 20, 2)
    _check(profile.transfer_overhead_s, 0, 0.5, 8)
    _check(profile.bandwidth_bytes_per_s, 1, 1e15, 8)
    assert [rates.batch for rates in model.batches] == [1, 2]
    for rates in model.batches:
        _check(rates.decode_tps, 1, rates.batch / DECODE_S * 1.2, 8)
        _check(rates.prefill_tps, PREFILL_TPS / 10, PREFILL_TPS * 1.5, 2)
    assert set(profile.workers) == {"w1", "w2"} and set(profile.workers["w1"]) == {"fake"}
    assert [(pair.source, pair.destination) for pair in profile.pairs] == [("w1", "w2"), ("w2", "w1")]
    for pair in profile.pairs:
        _check(pair.transfer_overhead_s, 0, 0.5, 4)
        _check(pair.bandwidth_loaded_bytes_per_s, 1, 1e15, 4)

    assert all(one["n"] and one["low"] <= one["value"] for one in report["constants"])
    assert {one["source"] for one in report["constants"]} == {None, "w1", "w2"}
    assert len(report["kv_points"]["fake"]) >= 8
    assert report["num_moves"] >= 64
    assert not (await cluster.state()).requests


async def test_others_use_the_profile(cluster: Cluster, tmp_path: Path) -> None:
    status, out, err = await _run(cluster.url, "--workers", "w1", "--model", "fake", folder=tmp_path)
    assert status == 0, err
    assert "nothing to move between" in err and "assumed" in out and "written to" in err
    command = ("-m", "godwit", "crossover", "--json", "--profile", str(tmp_path / "profile.json"))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    table, _ = await process.communicate()
    assert process.returncode == 0 and json.loads(table)["rows"]
    moves = MoveSettings(profile=str(tmp_path / "profile.json"))
    check_head(Settings(moves=moves))


async def test_an_engine_without_kv(cluster: Cluster, tmp_path: Path) -> None:
    status, _, err = await _run(cluster.url, "--model", "nokv", folder=tmp_path)
    assert status == 0, err
    assert "no KV can be shipped from w1 to w2 (this engine exports no ranges of KV)" in err
    profile = read_profile(tmp_path / "profile.json")
    assert profile.transfer_overhead_s.measured is None and profile.pairs == ()
    _check(profile.models["nokv"].recompute_overhead_s, 0, 0.5, 8)


async def test_it_measures_no_busy_cluster_unless_told(cluster: Cluster, tmp_path: Path) -> None:
    stream = await cluster.started({"model": "fake", "prompt": "x", "max_tokens": 4000})
    try:
        status, _, err = await _run(cluster.url, folder=tmp_path)
        assert status == 1 and "1 other requests run" in err and "--busy" in err
    finally:
        await stream.leave()
    await cluster.is_idle()
    assert _is_empty(tmp_path)


async def test_an_interrupt_leaves_no_request(cluster: Cluster, tmp_path: Path) -> None:
    process = await _start(cluster.url, "--model", "fake", folder=tmp_path)
    await cluster.wait_for(lambda status: len(status.moves) > 0 and len(status.requests) > 0)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(TIMEOUT_S):
        _, err = await process.communicate()
    assert process.returncode != 0 and b"Traceback" not in err
    await cluster.is_idle()
    assert _is_empty(tmp_path)


async def test_wrong_flags_cost_no_time(cluster: Cluster, tmp_path: Path) -> None:
    for words, message in (
        (("--contexts", "64,x"), "--contexts: whole numbers"),
        (("--contexts", "64,128"), "--contexts: at least 3 different ones"),
        (("--contexts", "64,128,4000"), "4000 is too long"),
        (("--workers", "w9"), "'w9' is not there; known: w1, w2"),
        (("--out", "nowhere/x.json"), "there is no folder nowhere"),
    ):
        status, _, err = await _run(cluster.url, *words, folder=tmp_path)
        assert status == 2 and message in err, err


async def test_no_head_there(tmp_path: Path) -> None:
    status, _, err = await _run("http://127.0.0.1:9", folder=tmp_path)
    assert status == 1 and "no head can be reached" in err and "--local" in err

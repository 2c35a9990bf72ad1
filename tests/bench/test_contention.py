"""`bench contention`: its load, its metric, its files, and a short run with fake engines on real workers."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from godwit.bench.contention import DECISIONS, run_contention
from godwit.bench.contention_report import (
    Answer,
    Arrivals,
    ContentionReport,
    Errors,
    Event,
    best_known,
    disturbed,
    make_row,
)
from godwit.bench.contention_scene import (
    Emulated,
    Load,
    Scene,
    Stage,
    make_asks,
    open_stage,
    read_questions,
)
from godwit.config import ModelSettings
from godwit.errors import ConfigError, GodwitError

CHECKPOINT_BYTES, INSTANCE_BYTES = 100_000, 1_000_000
QUESTIONS = ("How many birds are left?", "How far do they fly?", "When do they land?")


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What serves in production: asyncio with uvloop."""
    return "asyncio", {"use_uvloop": True}


# --- the load ---------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_requests() -> None:
    models = Scene().models
    asks = make_asks(Load(), models, QUESTIONS)
    assert asks == make_asks(Load(), models, QUESTIONS)
    assert asks != make_asks(Load(seed=2), models, QUESTIONS)
    assert len(asks) == round(Load().rate_per_s * Load().minutes * 60)
    assert [ask.at_s for ask in asks] == sorted(ask.at_s for ask in asks)
    assert {ask.model for ask in asks} == {model.name for model in models}
    assert {ask.prompt for ask in asks} == set(QUESTIONS)
    assert all(Load().least_tokens <= ask.max_tokens <= Load().most_tokens for ask in asks)
    assert asks[0].body["ignore_eos"] is True


def test_questions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GODWIT_DATA"):
        read_questions(tmp_path)
    path = tmp_path / "gsm8k" / "test.jsonl"
    path.parent.mkdir()
    path.write_text('{"question": "How many?", "answer": "7"}\n{"question": "How far?", "answer": "9"}\n')
    assert read_questions(tmp_path) == ("How many?", "How far?")
    path.write_text('{"answer": "7"}\n')
    with pytest.raises(ConfigError, match="is not GSM8K"):
        read_questions(tmp_path)


# --- the metric -------------------------------------------------------------------------------------------


def test_pauses_are_what_long_gaps_have_beyond_a_usual_one() -> None:
    steady = Answer("r", (1.0, 1.1, 1.2, 1.3))
    assert (steady.ttft_s, steady.pauses_s) == (1.0, 0.0)
    just_slow = Answer("r", (1.0, 1.1, 1.2, 1.3, 1.69))
    assert just_slow.pauses_s == 0.0
    paused = Answer("r", (1.0, 1.1, 1.2, 3.2, 3.3, 4.3, 4.4))
    assert paused.pauses_s == pytest.approx(1.9 + 0.9)
    # Tokens that came together are one arrival: their gaps of 0 say nothing of the pace.
    together = Answer("r", (1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.2))
    assert together.pauses_s == 0.0
    assert Answer("r", (1.0,)).pauses_s == 0.0


LOG = [
    Event("Loaded", "270000000 bytes from dram"),
    Event("Loaded", "270000000 bytes from ssd"),
    Event("Loaded", "270000000 bytes from ssd"),
    Event("MoveEnded", "split done: makes room for m2", "moved"),
    Event("MoveEnded", "tokens failed: the request ended", "ended"),
    Event("Preempt", "preempted: m2 for req-1", "killed"),
    Event("FailoverEnded", "failover done: preempted", "killed"),
    Event("RequestEnded", "", "quiet"),
]


def test_a_row() -> None:
    times_s = (2.0, 2.1, 2.2, 2.3, 4.3)
    answers = [Answer(name, times_s) for name in ("moved", "killed", "quiet")]
    answers.append(Answer("broken", (1.0,), "the engine failed"))
    row = make_row(answers, LOG, {"loading": Errors(3, 0.1, 0.2)}, 1.0)
    assert disturbed(LOG) == {"moved", "killed", "ended"}
    assert (row.requests, row.errors, row.problems) == (4, 1, ("broken: the engine failed",))
    assert (row.moves, row.failed_moves, row.kills, row.paused_requests) == (1, 1, 1, 2)
    assert row.failures == {"the request ended": 1}
    assert row.reloads == {"dram": 1, "ssd": 2}
    assert row.startup_p50_s == pytest.approx(3.9) and row.startup_mean_s == pytest.approx(3.267)
    assert (row.ttft_p50_s, row.ttft_p99_s) == (2.0, 2.0)
    assert row.startup_with_stalls_p50_s == pytest.approx(3.9)
    nobody = make_row([Answer("broken", (), "refused")], [], {}, 0.0)
    assert nobody.errors == 1 and math.isnan(nobody.startup_p50_s)


def test_the_estimators_are_those_of_whoever_predicted_most() -> None:
    rows = {
        "locality": make_row([], [], {"loading": Errors(9, 0.1, 0.2)}, 0.0),
        "live_migration": make_row([], [], {"loading": Errors(4, 1, 2), "resume": Errors(2, 3, 4)}, 0.0),
    }
    assert best_known(rows) == {"loading": Errors(9, 0.1, 0.2), "resume": Errors(2, 3, 4)}
    arrivals = Arrivals(1.0, 8.0, 1, 5.0, 0, 0)
    assert ContentionReport(rows, best_known(rows), Emulated(), arrivals).num_errors == 0


# --- the files --------------------------------------------------------------------------------------------


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Six models with small files of their own, of which two fit a device."""
    path = tmp_path / "fake.bin"
    path.write_bytes(Random(1).randbytes(CHECKPOINT_BYTES))
    options: dict[str, str | int | float | bool] = {
        "decode_s": 0.01,
        "prefill_tokens_per_s": 5000.0,
        "device_bytes": INSTANCE_BYTES,
    }
    original = ModelSettings(name="fake", engine="fake", path=str(path), options=options)
    return Scene(originals=(original,), emulated=Emulated(ssd_mb_per_s=0.1, dram_mb_per_s=1.0))


@pytest.fixture
def stage(scene: Scene, tmp_path: Path) -> Iterator[Stage]:
    """The scene with its files."""
    with open_stage(scene, tmp_path) as stage:
        yield stage


def test_every_worker_has_files_of_its_own_and_other_models_in_memory(scene: Scene, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    with open_stage(scene, tmp_path) as stage:
        assert len(stage.files) == 18 and len({path.stat().st_ino for path in stage.files.values()}) == 18
        assert stage.device_bytes == INSTANCE_BYTES and stage.dram_bytes == 3 * CHECKPOINT_BYTES
        near = {
            name: [one.name for one in site.models or () if one.preload == "dram"]
            for name, site in stage.sites().items()
        }
        assert near == {
            "w1": ["fake-1", "fake-2", "fake-3"],
            "w2": ["fake-3", "fake-4", "fake-5"],
            "w3": ["fake-1", "fake-5", "fake-6"],
        }
        settings = stage.settings("locality")
        assert settings.head.policy == "locality"
        assert settings.worker.emulated_ssd_bytes_per_s == 100_000.0
    assert set(tmp_path.iterdir()) == before


def test_no_room_for_the_copies(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1))
    with pytest.raises(ConfigError, match="make room there"), open_stage(scene, tmp_path):
        pass


def test_no_file(scene: Scene, tmp_path: Path) -> None:
    without = replace(scene, originals=(ModelSettings(name="fake", engine="fake"),))
    with pytest.raises(GodwitError, match="has no file"), open_stage(without, tmp_path):
        pass


# --- a run ------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_short_run(stage: Stage, tmp_path: Path) -> None:
    load = Load(minutes=0.2, rate_per_s=4.0, most_tokens=100)
    said: list[str] = []
    report = await run_contention(stage, load, ("live_migration",), QUESTIONS, said.append, tmp_path / "logs")
    row = report.policies["live_migration"]
    assert row.problems == () and row.errors == report.num_errors == 0
    assert row.requests == report.arrivals.n == 48
    assert 0 < row.ttft_p50_s <= row.startup_p50_s <= row.startup_p99_s
    assert row.ttft_p50_s <= row.startup_with_stalls_p50_s
    assert row.reloads["dram"] > 0 and row.reloads["ssd"] > 0
    # Every checkpoint that was loaded had been at one tier or the other, for at least each model once.
    assert sum(row.reloads.values()) >= len(stage.scene.models)
    assert report.estimators["loading"].n == sum(row.reloads.values())
    # Errors are of this run's own moves, and not of the rehearsal's.
    assert "resume" not in report.estimators or report.estimators["resume"].n <= row.moves
    told = msgspec.to_builtins(report)
    assert told["emulated"] == {"ssd_mb_per_s": 0.1, "dram_mb_per_s": 1.0}
    assert told["arrivals"]["cv"] == 8.0 and told["arrivals"]["seed"] == load.seed
    assert any("starting the workers" in line for line in said)
    decisions = (tmp_path / "logs" / "live_migration" / DECISIONS).read_bytes().splitlines()
    assert len(decisions) > 3 * row.requests

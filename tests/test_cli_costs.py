"""`godwit crossover`: the table for people and for programs, and the picture."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner

from godwit.cli_costs import add_commands
from godwit.costs.constants import Constant, Measurement
from godwit.errors import ConfigError
from godwit.profile import ModelProfile, PairProfile, Profile, read_profile, write_profile

Run = Callable[..., str]
MEASURED = Measurement("2 × Xeon, 2025-11-30", 24, 3e7, 5e7)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`godwit crossover` with these words: what it prints, or the error that it raises."""
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    add_commands(app)

    def invoke(*words: str) -> str:
        return CliRunner().invoke(app, words, catch_exceptions=False).stdout

    return invoke


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A measured cluster with one model of each kind."""
    path = tmp_path / "profile.json"
    models = {
        "full": ModelProfile(prefill_tps=Constant(150.0), kv_bytes_per_token=Constant(23_000.0)),
        "windowed": ModelProfile(prefill_tps=Constant(2500.0), kv_points=((512, 9.2e6), (2000, 21.2e6))),
    }
    write_profile(
        path,
        Profile(
            transfer_overhead_s=Constant(0.04),
            recompute_overhead_s=Constant(0.06),
            bandwidth_bytes_per_s=Constant(4e7, MEASURED),
            models=models,
        ),
    )
    return str(path)


@pytest.fixture
def pairs(profile: str, tmp_path: Path) -> str:
    """The same cluster with what was measured of two workers."""
    path = tmp_path / "pairs.json"
    slow = ModelProfile(prefill_tps=Constant(50.0), recompute_overhead_s=Constant(0.01))
    ways = (("w1", "w2", 0.1, Constant(1e7, MEASURED)), ("w2", "w1", 0.2, Constant(1e8)))
    write_profile(
        path,
        replace(
            read_profile(Path(profile)),
            workers={"w2": {"full": slow, "only there": ModelProfile(prefill_tps=Constant(9.0))}},
            pairs=tuple(
                PairProfile(
                    source=source,
                    destination=destination,
                    transfer_overhead_s=Constant(overhead_s),
                    bandwidth_bytes_per_s=bandwidth,
                )
                for source, destination, overhead_s, bandwidth in ways
            ),
        ),
    )
    return str(path)


def _report(text: str) -> Any:
    return json.loads(text)


def test_the_reference_table(run: Run) -> None:
    report = _report(run("--json"))
    assert report["rows"] == [
        {
            "prefill_tps": 3000,
            "wan": None,
            "lan": pytest.approx(1299, abs=2),
            "rdma": pytest.approx(914, abs=2),
        },
        {"prefill_tps": 250, "wan": None, "lan": pytest.approx(77, abs=1), "rdma": pytest.approx(75, abs=1)},
    ]
    assert list(report) == ["rows", "provenance"]
    provenance = report["provenance"]
    assert provenance["transfer_overhead_s"] == {"value": 0.5, "provenance": "assumed"}
    assert provenance["kv_bytes_per_token"] == {"value": 128_000, "provenance": "assumed"}
    assert provenance["bandwidth_bytes_per_s"]["lan"]["value"] == 1.25e9


def test_people_see_words_and_where_constants_come_from(run: Run) -> None:
    text = run()
    for words in (
        "LAN 10 Gbit/s",
        "never",
        "> 1,299 tokens",
        "250 tok/s",
        "transfer overhead 0.5 s: assumed",
    ):
        assert words in text


def test_flags_change_the_constants(run: Run) -> None:
    rows = _report(run("--prefill", "100,0.5", "--kv-bytes", "23000", "--json"))["rows"]
    assert [row["prefill_tps"] for row in rows] == [100, 0.5]
    assert rows[0]["wan"] == round(0.3 / (1 / 100 - 23_000 / 12.5e6))


def test_a_profile_brings_its_own_constants_and_link(run: Run, profile: str) -> None:
    report = _report(run("--profile", profile, "--model", "full", "--json"))
    (row,) = report["rows"]
    assert list(row) == ["prefill_tps", "wan", "lan", "rdma", "measured"]
    assert row["prefill_tps"] == 150
    link = report["provenance"]["bandwidth_bytes_per_s"]["measured"]
    assert link["provenance"] == MEASURED_PROVENANCE


MEASURED_PROVENANCE = "measured on 2 × Xeon, 2025-11-30, n = 24, 95 % interval [3e+07, 5e+07]"


def test_where_transfer_does_not_simply_win_above_the_ranges_are_said(run: Run, profile: str) -> None:
    words = ("--profile", profile, "--model", "windowed")
    (row,) = _report(run(*words, "--json"))["rows"]
    assert row["wan"] == [[0, 19]]
    assert row["lan"] == 0
    assert row["measured"] == [[0, pytest.approx(400, abs=10)], [pytest.approx(540, abs=10), None]]
    text = run(*words)
    for shown in ("< 19 tokens", "always", "measured 320 Mbit/s", "by range", MEASURED_PROVENANCE):
        assert shown in text


def test_a_pair_brings_its_link_and_its_destination_s_constants(run: Run, pairs: str) -> None:
    def row(*words: str) -> Any:
        (one,) = _report(run("--profile", pairs, "--model", "full", "--json", *words))["rows"]
        return one

    assert row("--pair", "w1,w2")["measured"] == round((0.1 - 0.01) / (1 / 50 - 23_000 / 1e7))
    assert row("--pair", "w2,w1")["measured"] == round((0.2 - 0.06) / (1 / 150 - 23_000 / 1e8))
    assert row()["measured"] == 0, "the cluster's overhead of a transfer is the smaller one"
    report = _report(run("--profile", pairs, "--model", "full", "--pair", "w1,w2", "--json"))
    assert report["provenance"]["prefill_tps"] == [{"value": 50, "provenance": "assumed"}]
    assert report["provenance"]["bandwidth_bytes_per_s"]["measured"]["provenance"] == MEASURED_PROVENANCE
    assert report["provenance"]["transfer_overhead_s"]["value"] == 0.1
    assert report["provenance"]["recompute_overhead_s"]["value"] == 0.01


def test_a_destination_may_have_a_model_of_its_own(run: Run, pairs: str) -> None:
    words = ("--profile", pairs, "--model", "only there", "--json", "--pair")
    assert _report(run(*words, "w1,w2"))["rows"][0]["prefill_tps"] == 9
    with pytest.raises(ConfigError, match="'only there' is not in the profile"):
        run(*words, "w2,w1")


def test_a_pair_that_is_not_known_is_named_beside_those_that_are(run: Run, pairs: str, profile: str) -> None:
    for pair in ("w2,w3", "w1", "w1, w2"):
        with pytest.raises(ConfigError, match=f"--pair: '{pair}' is not in the profile.*w1,w2 w2,w1"):
            run("--profile", pairs, "--pair", pair)
    with pytest.raises(ConfigError, match="pairs there: none"):
        run("--profile", profile, "--pair", "w1,w2")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(run: Run, profile: str, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="an optional extra")
    path = tmp_path / f"out.{ending}"
    run("--profile", profile, "--model", "windowed", "--plot", str(path))
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        # Text is drawn as paths, but each comes with its text as a comment.
        for words in (b"seconds", b"context (tokens)", b"split: both at once", b"c* = "):
            assert words in content


def test_a_picture_that_cannot_be_drawn_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="an optional extra")
    with pytest.raises(ConfigError, match=r"--plot.*Format 'xyz' is not supported"):
        run("--plot", str(tmp_path / "out.xyz"))
    with pytest.raises(ConfigError, match=r"--plot.*cannot be written"):
        run("--plot", str(tmp_path / "no" / "out.png"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'godwit\[plot\]'"):
        run("--plot", str(tmp_path / "out.png"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prefill", "fast"), "--prefill: numbers with commas between them, not 'fast'"),
        (("--prefill", "3000,0"), "--prefill: every rate must be above 0"),
        (("--prefill", "nan"), "--prefill: every rate must be above 0"),
        (("--kv-bytes", "-1"), "--kv-bytes: a number of at least 0, not -1"),
        (("--kv-bytes", "inf"), "--kv-bytes"),
        (("--model", "m"), "--model: 'm' is not in the profile; models there: none"),
        (("--profile", "/no/such/profile.json"), "/no/such/profile.json"),
    ],
)
def test_a_wrong_flag_is_named(run: Run, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(*words)


def test_one_of_several_models_must_be_chosen(run: Run, profile: str) -> None:
    with pytest.raises(ConfigError, match="name one of them: full, windowed"):
        run("--profile", profile)

"""`godwit models`, `events` and `explain` against a real head: what people and programs read."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from godwit.cli_models import EventLine, add_commands, describe_event
from godwit.config import ModelSettings, Option
from godwit.errors import ConfigError, GodwitError
from godwit.protocol.message import Message
from godwit.protocol.messages import FromHead
from godwit.protocol.model_messages import AddModel, ModelRefused, RemoveModel
from godwit.types import ModelName, Tier, WorkerId
from tests.admin.scripted import Head, info, obedient

pytestmark = pytest.mark.anyio

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    async with Head() as one:
        yield one


@pytest.fixture
def run(head: Head, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line that asks this head."""
    monkeypatch.setenv("GODWIT_URL", head.url)
    monkeypatch.setenv("COLUMNS", "160")
    app = typer.Typer()
    add_commands(app)

    async def invoke(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, words)

    return invoke


def unwilling(message: FromHead) -> Sequence[Message]:
    """A worker that neither takes models nor lets them go."""
    if isinstance(message, AddModel):
        return [ModelRefused(ModelName(message.model.name), "the disk is full")]
    if isinstance(message, RemoveModel):
        return [ModelRefused(message.model, "it is busy")]
    return obedient(message)


def rows(text: str) -> list[str]:
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


async def test_models_are_listed(head: Head, run: Run) -> None:
    await head.join("w1", info("a", is_loaded=True), emulated_tiers=((Tier.SSD, 1e8),))
    await head.admin.pin("a", is_pinned=True)
    shown = rows((await run("models", "list")).stdout)
    assert "a configured, pinned w1 loaded, in ssd 0 3.0 GB 2.0 GB" in shown
    assert "w1 emulates ssd at 100 MB/s: its times are not its hardware's." in shown
    told = json.loads((await run("models", "list", "--json")).stdout)
    assert told["models"][0]["places"][0]["is_loaded"] is True


async def test_without_any_model_it_says_so(run: Run) -> None:
    assert "no worker is connected" in (await run("models", "list")).stdout


async def test_a_model_is_added_and_removed_and_each_worker_has_its_say(head: Head, run: Run) -> None:
    worker = await head.join("w1", info("a"))
    await head.join("w2", info("a"), script=unwilling)
    added = await run(
        *("models", "add", "fast", "--engine", "fake"),
        *("--option", "decode_s=0.01", "--option", "slow=true", "--option", "word=hey"),
    )
    assert (added.exit_code, added.stdout) == (0, "fast: added to w1\n")
    assert added.stderr == "fast: not added to w2: the disk is full\n"
    options: dict[str, Option] = {"decode_s": 0.01, "slow": True, "word": "hey"}
    assert (
        AddModel(ModelSettings(name="fast", engine="fake", preload="none", options=options)) in worker.heard
    )
    assert "fast added w1 in remote 0 3.0 GB 2.0 GB" in rows((await run("models", "list")).stdout)
    removed = await run("models", "rm", "fast")
    assert (removed.exit_code, removed.stdout) == (1, "fast: removed from w1\n")
    assert removed.stderr == "fast: not removed from w2: it is busy\n"


async def test_a_model_is_fetched_by_url_with_a_template_of_its_own(
    head: Head, run: Run, tmp_path: Path
) -> None:
    worker = await head.join("w1", info("a"))
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    source = ("--from", "https://host/x.gguf", "--sha256", "0" * 64)
    answer = await run("models", "add", "x", *source, "--chat-template", str(template), "--json")
    assert json.loads(answer.stdout) == {"model": "x", "workers": {"w1": None}}
    settings = {"url": source[1], "sha256": "0" * 64, "chat_template": "{{ messages }}", "preload": "none"}
    assert AddModel(ModelSettings(name="x", **settings)) in worker.heard  # type: ignore[arg-type]  # all texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x",), "give the GGUF file's path"),
        (("x", "--from", "https://host/x.gguf"), "models.sha256: missing"),
        (("x", "--engine", "fake", "--option", "novalue"), "KEY=VALUE"),
        (("x", "--engine", "fake", "--chat-template", "/no/such.jinja"), "/no/such.jinja cannot be read"),
    ],
)
async def test_what_cannot_be_added_is_said_before_anybody_is_asked(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    result = await run("models", "add", *words)
    assert isinstance(result.exception, ConfigError)
    assert message in result.exception.message


async def test_a_model_is_pinned_and_let_go(head: Head, run: Run) -> None:
    await head.join("w1", info("a"))
    assert (await run("models", "pin", "a")).stdout == "a is pinned\n"
    assert (await head.models()).models[0].is_pinned
    assert (await run("models", "pin", "a", "--off")).stdout == "a is not pinned any more\n"
    assert not (await head.models()).models[0].is_pinned
    unknown = await run("models", "pin", "b")
    assert isinstance(unknown.exception, GodwitError)
    assert "models: a" in unknown.exception.message


async def test_events_are_told_in_lines_and_emulated_tiers_beside_them(head: Head, run: Run) -> None:
    await head.join("w1", info("a", is_loaded=True), emulated_tiers=((Tier.SSD, 1e8),))
    told = await run("events")
    assert told.stdout.startswith("1 20")
    assert "WorkerJoined w1: 1 models\n" in told.stdout
    assert "w1 emulates ssd at 100 MB/s" in told.stderr
    assert json.loads((await run("events", "--json")).stdout.splitlines()[0])["kind"] == "WorkerJoined"
    assert (await run("events", "--since", "1")).stdout == ""


async def test_an_explanation_names_the_choice_the_others_and_what_is_emulated(head: Head, run: Run) -> None:
    await head.join("w1", info("a"), emulated_tiers=((Tier.SSD, 1e9),))
    await head.join("w2", info("a", tier=Tier.REMOTE))
    shown = rows((await run("explain", "a")).stdout)
    assert shown[0] == "a by live_migration: w1 loads in 2.0 s from ssd"
    assert "w1 (chosen) ssd 2.00 1,000 loads in 2.0 s from ssd" in shown
    assert "w2 remote 20.00 100 loads in 20.0 s from remote" in shown
    assert "w1 emulates ssd at 1000 MB/s: its times are not its hardware's." in shown
    told = json.loads((await run("explain", "a", "--json")).stdout)
    assert [row["worker"] for row in told["explanation"]["rows"]] == ["w1", "w2"]
    assert told["emulated_tiers"] == {"w1": {"ssd": 1e9}}


def test_an_event_has_all_that_it_is_about_in_its_line() -> None:
    event = EventLine(
        7,
        1.0,
        "Move",
        "to make room",
        model=ModelName("m"),
        worker=WorkerId("w1"),
        destination=WorkerId("w2"),
        seconds=1.234,
        at="2026-01-02T03:04:05.678+00:00",
    )
    assert (
        describe_event(event)
        == "7 2026-01-02T03:04:05.678+00:00 Move m w1 → w2: to make room (expected 1.23 s)"
    )

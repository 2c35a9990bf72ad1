"""Models that are added, removed and pinned while the head runs, and what survives it."""

import asyncio
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from godwit.admin.shapes import ModelAnswers
from godwit.client import decode
from godwit.config import HeadSettings, ModelSettings
from godwit.errors import BadRequestError, ConflictError, NotFoundError, UnavailableError
from godwit.protocol.message import Message
from godwit.protocol.messages import FromHead
from godwit.protocol.model_messages import AddModel, ModelChanged, ModelRefused, ModelRemoved, RemoveModel
from godwit.types import ModelName, Tier
from tests.admin.scripted import DEADLINE_S, Head, info, obedient

pytestmark = pytest.mark.anyio

ADDED = ModelSettings(name="org/added:7b", url="https://host/added.gguf", sha256="0" * 64)


def refusing(message: FromHead) -> Sequence[Message]:
    """A worker that takes no model."""
    if isinstance(message, AddModel):
        return [ModelRefused(ModelName(message.model.name), "the disk is full")]
    return obedient(message)


def silent(message: FromHead) -> Sequence[Message]:
    """A worker that is busy with adding for longer than anybody waits."""
    return [] if isinstance(message, AddModel) else obedient(message)


async def test_every_model_is_listed_on_every_worker(head: Head) -> None:
    await head.join("w1", info("a", is_loaded=True), info("b", tier=Tier.DRAM))
    await head.join("w2", info("a"), emulated_tiers=((Tier.SSD, 1e8),))
    listed = await head.models()
    assert [(one.name, one.is_added, one.is_pinned) for one in listed.models] == [
        ("a", False, False),
        ("b", False, False),
    ]
    places = [
        (p.worker, p.tier, p.is_loaded, p.device_bytes, p.checkpoint_bytes) for p in listed.models[0].places
    ]
    assert places == [("w1", "ssd", True, 3 * 10**9, 2 * 10**9), ("w2", "ssd", False, 3 * 10**9, 2 * 10**9)]
    assert listed.emulated_tiers == {"w2": {Tier.SSD: 1e8}}


async def test_a_model_is_added_to_all_workers_and_to_those_to_come(head: Head) -> None:
    first = await head.join("w1", info("a"))
    await head.join("w2", info("a"), script=refusing)
    answers = decode(await head.admin.add_model(ADDED), ModelAnswers)
    assert answers == ModelAnswers("org/added:7b", {"w1": None, "w2": "the disk is full"})
    assert AddModel(ADDED) in first.heard
    listed = (await head.models()).models[-1]
    assert (listed.name, listed.is_added) == ("org/added:7b", True)
    assert [(place.worker, place.tier) for place in listed.places] == [("w1", Tier.REMOTE)]
    late = await head.join("w3", info("a"))
    await head.until(lambda status: len(status.workers[-1].models) == 2)
    assert AddModel(ADDED) in late.heard


async def test_a_worker_that_joins_while_a_model_is_added_is_asked_too(head: Head) -> None:
    first = await head.join("w1", info("a"), script=silent)
    adding = asyncio.create_task(head.admin.add_model(ADDED))
    async with asyncio.timeout(DEADLINE_S):
        while AddModel(ADDED) not in first.heard:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.01)
    await head.join("w2", info("a"))
    await head.until(lambda status: any(len(worker.models) == 2 for worker in status.workers))
    first.send(ModelChanged(info(ADDED.name)))
    assert decode(await adding, ModelAnswers) == ModelAnswers(ADDED.name, {"w1": None, "w2": None})


async def test_a_model_that_no_worker_takes_is_not_added(head: Head) -> None:
    with pytest.raises(ConflictError, match=r"not added: no worker is connected; start one"):
        await head.admin.add_model(ADDED)
    await head.join("w1", info("a"), script=refusing)
    with pytest.raises(ConflictError, match=r"org/added:7b was not added: w1: the disk is full"):
        await head.admin.add_model(ADDED)
    assert [one.name for one in (await head.models()).models] == ["a"]


async def test_who_waits_for_too_long_is_told_where_to_look(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.admin.models.ANSWER_S", 0.05)
    await head.join("w1", info("a"), script=silent)
    with pytest.raises(UnavailableError, match="`godwit models list` shows where it is"):
        await head.admin.add_model(ADDED)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ModelSettings(name="x"), "give the GGUF file's path"),
        (ModelSettings(name="x", url="ftp://host/x", sha256="0" * 64), "must begin with https"),
        (ModelSettings(name="no name"), "not a valid body"),
    ],
)
async def test_wrong_settings_are_refused_with_what_is_wrong(
    head: Head, model: ModelSettings, message: str
) -> None:
    with pytest.raises(BadRequestError, match=message):
        await head.admin.add_model(model)


async def test_only_what_was_added_can_be_removed(head: Head) -> None:
    worker = await head.join("w1", info("a"))
    await head.admin.add_model(ADDED)
    answers = decode(await head.admin.remove_model(ADDED.name), ModelAnswers)
    assert answers == ModelAnswers(ADDED.name, {"w1": None})
    assert RemoveModel(ModelName(ADDED.name)) in worker.heard
    assert [one.name for one in (await head.models()).models] == ["a"]
    with pytest.raises(NotFoundError, match="a was not added to this cluster"):
        await head.admin.remove_model("a")


async def test_what_a_worker_says_while_it_removes_a_model_does_not_bring_it_back(head: Head) -> None:
    def unloading(message: FromHead) -> Sequence[Message]:
        """As real workers do: the instance goes first."""
        if isinstance(message, RemoveModel):
            return [ModelChanged(info(message.model, tier=Tier.REMOTE)), ModelRemoved(message.model)]
        return obedient(message)

    await head.join("w1", info("a"), script=unloading)
    await head.admin.add_model(ADDED)
    await head.admin.remove_model(ADDED.name)
    assert [one.name for one in (await head.models()).models] == ["a"]


async def test_a_model_is_pinned_and_let_go(head: Head) -> None:
    await head.join("w1", info("org/a:1"))
    await head.admin.pin("org/a:1", is_pinned=True)
    assert (await head.models()).models[0].is_pinned
    assert (await head.admin.status()).workers[0].models[0].is_pinned
    await head.admin.pin("org/a:1", is_pinned=False)
    assert not (await head.models()).models[0].is_pinned
    with pytest.raises(NotFoundError, match=r"no server has the model 'b'; models: org/a:1"):
        await head.admin.pin("b", is_pinned=True)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows meanwhile."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


async def test_who_pins_a_model_is_told_where_that_could_not_be_stored(tmp_path: Path) -> None:
    async with Head(HeadSettings(port=0, store=str(tmp_path / "head.sqlite"))) as head:
        await head.join("w1", info("a"))
        await head.admin.pin("a", is_pinned=True)
        with full_disk(), pytest.raises(UnavailableError, match=r"head\.store has it not"):
            await head.admin.pin("a", is_pinned=False)


async def test_what_was_added_and_pinned_survives_a_restart(tmp_path: Path) -> None:
    settings = HeadSettings(port=0, store=str(tmp_path / "head.sqlite"))
    async with Head(settings) as head:
        await head.join("w1", info("a"), info("b"))
        await head.admin.add_model(ADDED)
        await head.admin.pin("a", is_pinned=True)
        await head.admin.pin("b", is_pinned=True)
        await head.admin.pin("b", is_pinned=False)
    async with Head(settings) as head:
        worker = await head.join("w1", info("a"), info("b"))
        await head.until(lambda status: len(status.workers[0].models) == 3)
        assert AddModel(ADDED) in worker.heard
        models = (await head.models()).models
        assert {one.name: (one.is_added, one.is_pinned) for one in models} == {
            "a": (False, True),
            "b": (False, False),
            ADDED.name: (True, False),
        }
        await head.admin.remove_model(ADDED.name)
    async with Head(settings) as head:
        assert [one.name for one in (await head.models()).models] == []


async def test_a_pinned_instance_is_not_evicted_by_a_new_head_either(tmp_path: Path) -> None:
    settings = HeadSettings(port=0, store=str(tmp_path / "head.sqlite"), placement_timeout_s=0.3)
    async with Head(settings) as head:
        await head.join("w1", info("a", is_loaded=True), info("b"), device_bytes=3 * 10**9)
        await head.admin.pin("a", is_pinned=True)
    async with Head(settings) as head:
        worker = await head.join("w1", info("a", is_loaded=True), info("b"), device_bytes=3 * 10**9)
        assert await head.complete("b") == 503
        kinds = {type(message).__name__ for message in worker.heard}
        assert "Unload" not in kinds
        await head.admin.pin("a", is_pinned=False)
        asking = head.complete("b")
        await head.until(lambda _: "Unload" in {type(message).__name__ for message in worker.heard})
        worker.send(ModelChanged(info("a")))
        assert await asking == 503

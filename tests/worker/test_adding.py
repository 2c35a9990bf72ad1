"""Models that come and go while the worker runs: each order has one answer that says what to do."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from godwit.config import ModelSettings, WorkerSettings
from godwit.ports import SequenceSpec
from godwit.protocol.message import Message
from godwit.protocol.model_messages import (
    AddModel,
    ModelChanged,
    ModelRefused,
    ModelRemoved,
    RemoveModel,
)
from godwit.types import ModelName, RequestId, Sampling
from godwit.worker.adding import AddedModels
from godwit.worker.instances import LocalInstances
from godwit.worker.models import LocalModel, describe_model, open_store
from tests.worker.files import until, write

OWN = ModelSettings(name="own", engine="fake")
NEW = ModelSettings(name="new", engine="fake")


class Rig:
    """A worker's models with room for all of them, and its answers."""

    def __init__(self, folder: Path) -> None:
        self.worker = WorkerSettings(checkpoint_dir=str(folder))
        self.store = open_store(self.worker, "w")
        self.answers: list[Message] = []

    async def open(self) -> "Rig":
        own = await self.describe(OWN)
        self.instances = LocalInstances([own], self.store, 10**9, lambda _: None, lambda *_: None)
        self.models = AddedModels([OWN], self.describe, self.instances, self.answers.append)
        return self

    async def describe(self, model: ModelSettings) -> LocalModel:
        return await describe_model(model, self.worker, self.store)

    async def answer(self, ask: Callable[[], None]) -> Message:
        num_before = len(self.answers)
        ask()
        await until(lambda: len(self.answers) > num_before)
        return self.answers[-1]

    async def add(self, model: ModelSettings) -> Message:
        return await self.answer(lambda: self.models.add(AddModel(model)))

    async def remove(self, name: str) -> Message:
        return await self.answer(lambda: self.models.remove(RemoveModel(ModelName(name))))

    async def refusal(self, answer: Awaitable[Message]) -> str:
        refused = await answer
        assert isinstance(refused, ModelRefused)
        return refused.reason


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = await Rig(folder).open()
        await scenario(rig)
        await rig.models.close()
        await rig.instances.close()

    asyncio.run(main())


def test_a_model_is_added_loaded_and_removed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        info = rig.instances.info
        assert await rig.add(NEW) == ModelChanged(info(ModelName("new")))
        assert not info(ModelName("new")).is_loaded
        assert await rig.add(NEW) == ModelChanged(info(ModelName("new"))), "adding it again is harmless"
        loaded = asyncio.Event()
        rig.instances.load(ModelName("new"), lambda _: loaded.set())
        await loaded.wait()
        assert await rig.remove("new") == ModelRemoved(ModelName("new"))
        assert [one.name for one in rig.instances.infos] == ["own"]
        assert await rig.remove("new") == ModelRemoved(ModelName("new")), "removing it again is harmless"
        assert isinstance(await rig.add(NEW), ModelChanged)

    run(tmp_path, scenario)


def test_another_model_of_a_name_is_refused(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.add(NEW)
        for name in ("own", "new"):
            other = ModelSettings(name=name, engine="fake", options={"decode_s": 0.5})
            assert "take another name" in await rig.refusal(rig.add(other))

    run(tmp_path, scenario)


def test_two_orders_for_one_model_have_one_answer(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.models.add(AddModel(NEW))
        rig.models.add(AddModel(NEW))
        assert "try again" in await rig.refusal(rig.remove("new"))
        assert isinstance(await rig.answer(lambda: None), ModelChanged)

    run(tmp_path, scenario)


def test_what_cannot_be_described_is_refused_and_may_be_corrected(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        path = tmp_path / "new.gguf"
        asked = ModelSettings(name="new", engine="fake", path=str(path))
        assert "there is no model file" in await rig.refusal(rig.add(asked))
        wrong = ModelSettings(name="new", engine="fake", options={"speed": 1})
        assert "known options" in await rig.refusal(rig.add(wrong))
        write(path, 1)
        assert isinstance(await rig.add(asked), ModelChanged)

    run(tmp_path, scenario)


def test_what_is_configured_or_serves_is_not_removed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert "restart the worker" in await rig.refusal(rig.remove("own"))
        await rig.add(NEW)
        loaded = asyncio.Event()
        rig.instances.load(ModelName("new"), lambda _: loaded.set())
        await loaded.wait()
        engine = rig.instances.get(ModelName("new"))
        assert engine is not None
        engine.open(RequestId("r"), SequenceSpec((1,), (), Sampling(1, 1)))
        assert "move them away" in await rig.refusal(rig.remove("new"))
        engine.release(RequestId("r"))
        assert isinstance(await rig.remove("new"), ModelRemoved)

    run(tmp_path, scenario)

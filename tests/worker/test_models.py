"""What a worker says of a model before it is loaded, also of one whose file is far away."""

import asyncio
from pathlib import Path

import pytest

from godwit.config import ModelSettings, WorkerSettings
from godwit.errors import ModelLoadError
from godwit.types import Tier
from godwit.worker.models import describe_model, machine_bytes, open_store
from godwit.worker.progress import LoadWatch
from tests.worker.files import MB, Shop, content, names, opened, sha256, write

DATA = content(1)


def settings(folder: Path, **changes: int) -> WorkerSettings:
    return WorkerSettings(checkpoint_dir=str(folder), **changes)  # type: ignore[arg-type]  # all keys here are counts


def far(url: str, data: bytes = DATA) -> ModelSettings:
    return ModelSettings(name="far", engine="fake", url=url, sha256=sha256(data))


def test_a_fake_without_a_file_has_nothing_to_bring_near(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = settings(tmp_path)
        model = await describe_model(ModelSettings(name="x", engine="fake"), worker, open_store(worker, "w"))
        assert model.file is None
        assert (model.info.tier, model.info.checkpoint_bytes) == (Tier.DRAM, 0)

    asyncio.run(scenario())


def test_a_file_that_is_used_in_place_is_on_ssd(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = settings(tmp_path / "store")
        path = write(tmp_path / "a", 1)
        model = await describe_model(
            ModelSettings(name="x", engine="fake", path=str(path)), worker, open_store(worker, "w")
        )
        assert model.file is not None
        assert (model.file.path, model.file.tier) == (path, Tier.SSD)
        assert (model.info.tier, model.info.checkpoint_bytes) == (Tier.SSD, MB)
        assert model.info.digest == sha256(DATA)
        path.unlink()
        with pytest.raises(ModelLoadError, match="there is no model file"):
            await describe_model(
                ModelSettings(name="x", engine="fake", path=str(path)), worker, open_store(worker, "w")
            )

    asyncio.run(scenario())


def test_a_far_file_is_fetched_once_to_be_described_and_what_it_said_outlives_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA, content(2))) as shop:
            worker = settings(tmp_path, ssd_bytes=MB)
            store = open_store(worker, "w/1")
            first = await describe_model(far(f"{shop.url}/0"), worker, store)
            assert first.file is not None
            assert first.file.tier is Tier.SSD
            assert first.info.checkpoint_bytes == MB
            other = await describe_model(far(f"{shop.url}/1", content(2)), worker, store)
            assert (first.file.tier, first.info.checkpoint_bytes) == (Tier.REMOTE, MB)
            assert other.file is not None

            again = await describe_model(far(f"{shop.url}/0"), worker, open_store(worker, "w/1"))
            assert shop.num_asked == 2
            assert again.info == first.info
            assert again.file is not None
            assert again.file.tier is Tier.REMOTE
            assert names(tmp_path) == ["w%2F1"]

            # Other settings say other things.
            changed = settings(tmp_path, ssd_bytes=MB, context_tokens=100)
            await describe_model(far(f"{shop.url}/0"), changed, open_store(changed, "w/1"))
            assert shop.num_asked == 3

    asyncio.run(scenario())


def test_a_far_file_without_room_says_what_to_raise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:
            worker = settings(tmp_path, ssd_bytes=MB - 1)
            store = open_store(worker, "w")
            with pytest.raises(ModelLoadError, match=r"worker\.ssd_bytes"):
                await describe_model(far(f"{shop.url}/0"), worker, store)
            assert names(store.folder) == []

    asyncio.run(scenario())


def test_budgets_and_emulated_rates_come_from_the_settings(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = settings(tmp_path / "store", dram_bytes=MB, emulated_ssd_bytes_per_s=5_000_000)
        store = open_store(worker, "w")
        told: list[tuple[Tier, int]] = []
        files = [store.in_place(write(tmp_path / name, 1)) for name in "ab"]
        for file in files:
            async with store.to_device(file, LoadWatch(lambda tier, done, _: told.append((tier, done)))):
                pass
        assert [file.tier for file in files] == [Tier.SSD, Tier.DRAM]
        assert told[0] == (Tier.SSD, 500_000), "a chunk is a tenth of a second"
        await store.close()

    asyncio.run(scenario())
    assert 0 < machine_bytes(0.25) * 2 <= machine_bytes(0.5) + 1

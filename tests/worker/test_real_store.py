"""The store under llama.cpp, which maps the file itself: a checkpoint comes from SSD, then from memory."""

import asyncio
import importlib.util
import shutil
from pathlib import Path

import pytest

from godwit.config import ModelSettings, WorkerSettings
from godwit.engines.checkpoints import locate
from godwit.errors import GodwitError
from godwit.ports import Engine
from godwit.types import LoadRecord, ModelInfo, ModelName, Tier
from godwit.worker.instances import LocalInstances
from godwit.worker.models import describe_model, open_store
from godwit.worker.residency import drop_pages
from tests.worker.files import MB, needs_page_cache, resident_share, until, write

NAME = ModelName("real")


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_a_real_checkpoint_is_read_once_and_leaves_memory_when_it_is_evicted(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)
    # A copy, since other tests have the file itself mapped.
    path = tmp_path / "model.gguf"
    shutil.copyfile(locate("smollm2-135m", None), path)
    drop_pages(path)
    size = path.stat().st_size
    other = write(tmp_path / "other", 1, 10 * MB)
    records: list[LoadRecord] = []

    def on_change(_info: ModelInfo, _error: str | None, load: LoadRecord | None) -> None:
        if load is not None:
            records.append(load)

    async def scenario() -> None:
        worker = WorkerSettings(
            checkpoint_dir=str(tmp_path / "store"), dram_bytes=size, slots=1, context_tokens=64
        )
        store = open_store(worker, "w")
        models = [
            await describe_model(ModelSettings(name=NAME, path=str(path)), worker, store),
            await describe_model(ModelSettings(name="other", engine="fake", path=str(other)), worker, store),
        ]
        instances = LocalInstances(models, store, 10**12, lambda _: None, on_change)

        async def load(name: ModelName) -> None:
            done: asyncio.Future[Engine | GodwitError] = asyncio.get_running_loop().create_future()
            instances.load(name, done.set_result)
            assert not isinstance(await done, GodwitError)

        for name in (NAME, NAME, ModelName("other")):
            await load(name)
            instances.unload(name)
        assert [(one.tier, one.num_bytes) for one in records] == [
            (Tier.SSD, size),
            (Tier.DRAM, size),
            (Tier.SSD, 10 * MB),
        ]
        assert models[0].file is not None
        assert models[0].file.tier is Tier.SSD
        # The engine may be closing still.
        await until(lambda: resident_share(path) == 0.0)
        # While an instance has it mapped, nothing puts its pages out.
        await load(NAME)
        await load(ModelName("other"))
        assert models[0].file.tier is Tier.SSD
        assert resident_share(path) == 1.0
        await instances.close()
        assert resident_share(path) == 0.0

    asyncio.run(scenario())

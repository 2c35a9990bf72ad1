"""The checkpoint store: files come near one way at a time, stay within their budgets, and leave for real."""

import asyncio
from pathlib import Path

import pytest

from godwit.errors import ModelLoadError
from godwit.types import Tier
from godwit.worker.progress import LoadWatch
from godwit.worker.store import CheckpointStore, StoredFile
from tests.worker.files import (
    MB,
    Shop,
    content,
    locked_bytes,
    names,
    needs_page_cache,
    opened,
    resident_share,
    sha256,
    until,
    write,
)

PLENTY = 100 * MB
# Chunks of this rate are 10 kB, so that a file of some of them takes some turns of the loop.
SLOW = 100_000.0


class Rig:
    """A store with what it told, in the order in which things happened."""

    def __init__(
        self, folder: Path, dram_bytes: int = PLENTY, ssd_bytes: int = PLENTY, **rates: float
    ) -> None:
        self.store = CheckpointStore(
            folder, dram_bytes, ssd_bytes, {Tier(name): rate for name, rate in rates.items()}
        )
        self.store.on_tier = lambda file: self.told.append((file.path.name[:4], file.tier.value))
        self.told: list[tuple[str, str]] = []
        self.ended: list[str] = []

    async def load(self, file: StoredFile, name: str = "") -> LoadWatch:
        """What a load does, but for the engine."""
        watch = LoadWatch()
        async with self.store.to_device(file, watch):
            self.ended.append(name)
        return watch

    async def unload(self, file: StoredFile) -> None:
        await self.store.left_device(file)

    async def load_once(self, file: StoredFile) -> LoadWatch:
        """A load, and the end of its instance."""
        watch = await self.load(file)
        await self.unload(file)
        return watch


def test_a_file_on_the_disk_comes_into_memory_and_is_locked_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = write(tmp_path / "a", 1)
        rig = Rig(tmp_path / "store")
        file = rig.store.in_place(path)
        before = locked_bytes()
        first = await rig.load_once(file)
        assert first.record(file.num_bytes).tier is Tier.SSD
        assert locked_bytes() - before >= MB, "lock the checkpoint, as root or with ulimit -l unlimited"
        assert resident_share(path) == 1.0
        assert (await rig.load_once(file)).tier is Tier.DRAM
        assert rig.told == [("a", "dram")]
        await rig.store.close()
        assert locked_bytes() == before

    asyncio.run(scenario())


def test_what_leaves_memory_leaves_the_page_cache(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)

    async def scenario() -> None:
        a, b = write(tmp_path / "a", 1), write(tmp_path / "b", 2)
        rig = Rig(tmp_path / "store", dram_bytes=MB)
        await rig.load_once(rig.store.in_place(a))
        await rig.load_once(rig.store.in_place(b))
        assert rig.told == [("a", "dram"), ("a", "ssd"), ("b", "dram")]
        assert resident_share(a) == 0.0
        assert resident_share(b) == 1.0
        await rig.store.close()

    asyncio.run(scenario())


def test_the_least_recently_used_leaves_memory_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path / "store", dram_bytes=2 * MB)
        a, b, c = (rig.store.in_place(write(tmp_path / name, 1)) for name in "abc")
        for file in (a, b, a, c):
            await rig.load_once(file)
        assert [file.tier for file in (a, b, c)] == [Tier.DRAM, Tier.SSD, Tier.DRAM]
        await rig.store.close()

    asyncio.run(scenario())


def test_a_file_that_is_larger_than_the_budget_is_read_and_evicts_nobody(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)

    async def scenario() -> None:
        rig = Rig(tmp_path / "store", dram_bytes=2 * MB)
        small = rig.store.in_place(write(tmp_path / "small", 1))
        large = rig.store.in_place(write(tmp_path / "large", 2, 3 * MB))
        await rig.load_once(small)
        await rig.load(large)
        assert (small.tier, large.tier) == (Tier.DRAM, Tier.SSD)
        assert resident_share(large.path) == 1.0, "an instance uses it"
        await rig.unload(large)
        assert resident_share(large.path) == 0.0
        assert (await rig.load_once(large)).tier is Tier.SSD
        await rig.store.close()

    asyncio.run(scenario())


def test_a_preload_into_memory_evicts_nobody(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)

    async def scenario() -> None:
        rig = Rig(tmp_path / "store", dram_bytes=MB)
        a, b = (rig.store.in_place(write(tmp_path / name, 1)) for name in "ab")
        for file in (a, b):
            with rig.store.using(file):
                await rig.store.to_dram(file, LoadWatch(), may_evict=False)
        assert (a.tier, b.tier) == (Tier.DRAM, Tier.SSD)
        assert resident_share(b.path) == 0.0
        await rig.store.close()

    asyncio.run(scenario())


def test_loads_from_ssd_come_one_after_the_other_and_one_from_memory_passes_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path / "store", ssd=SLOW)
        near = rig.store.in_place(write(tmp_path / "near", 1, 5_000))
        a, b = (rig.store.in_place(write(tmp_path / name, 2, 30_000)) for name in "ab")
        await rig.load(near)
        loads = [asyncio.create_task(rig.load(file, file.path.name)) for file in (a, b)]
        await until(lambda: a.num_bytes > 0)
        await rig.load(near, "near")
        first, second = await asyncio.gather(*loads)
        assert rig.ended[1:] == ["near", "a", "b"]
        assert [told for told in rig.told if told[0] != "near"] == [("a", "dram"), ("b", "dram")]
        assert second.record(0).queue_s > first.record(0).queue_s
        await rig.store.close()

    asyncio.run(scenario())


def test_loads_of_one_file_move_it_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(content(1))) as shop:
            rig = Rig(tmp_path / "store")
            remote = shop.remote()
            file = rig.store.fetched(remote, remote.sha256 or "")
            watches = await asyncio.gather(*(rig.load(file) for _ in range(3)))
            assert shop.num_asked == 1
            assert [watch.tier for watch in watches] == [Tier.REMOTE, Tier.DRAM, Tier.DRAM]
            assert [tier for _, tier in rig.told] == ["ssd", "dram"]
            assert file.path.read_bytes() == content(1)
            await rig.store.close()

    asyncio.run(scenario())


def test_progress_is_told_of_each_tier_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.worker.progress.REPORT_EVERY_S", 0.0)
    told: list[tuple[Tier, int, int]] = []

    async def scenario() -> None:
        async with opened(Shop(content(1, 20_000))) as shop:
            store = CheckpointStore(tmp_path / "store", PLENTY, PLENTY, {Tier.SSD: SLOW})
            file = store.fetched(shop.remote(), "1" * 64)
            async with store.to_device(file, LoadWatch(lambda *moved: told.append(moved))):
                pass
            await store.close()

    asyncio.run(scenario())
    assert [one for one in told if one[0] is Tier.SSD] == [
        (Tier.SSD, 10_000, 20_000),
        (Tier.SSD, 20_000, 20_000),
    ]
    assert [tier for tier, num_bytes, total in told if num_bytes == total] == [
        Tier.REMOTE,
        Tier.SSD,
        Tier.DRAM,
    ]


def test_the_least_recently_used_fetched_file_leaves_the_disk_but_none_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(*(content(seed) for seed in range(4)))) as shop:
            rig = Rig(tmp_path / "store", dram_bytes=0, ssd_bytes=2 * MB)
            remotes = [shop.remote(number) for number in range(4)]
            a, b, c, d = (rig.store.fetched(remote, remote.sha256 or "") for remote in remotes)
            await rig.load(a)
            await rig.load_once(b)
            await rig.load(c)
            assert [file.tier for file in (a, b, c)] == [Tier.SSD, Tier.REMOTE, Tier.SSD]
            assert not b.path.exists()
            with pytest.raises(ModelLoadError, match=r"worker\.ssd_bytes"):
                await rig.load(d)
            await rig.unload(a)
            await rig.load(d)
            assert names(rig.store.folder) == sorted([c.path.name, d.path.name])
            await rig.store.close()

    asyncio.run(scenario())


def test_a_later_life_finds_what_was_fetched_and_removes_what_was_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(content(1), content(2))) as shop:
            first = Rig(tmp_path / "store")
            for number in (0, 1, 0):
                remote = shop.remote(number)
                await first.load_once(first.store.fetched(remote, remote.sha256 or ""))
            await first.store.close()
            (tmp_path / "store" / f"{sha256(b'cut')}.part").write_bytes(b"half of it")

            second = Rig(tmp_path / "store", ssd_bytes=2 * MB)
            a, b = (second.store.fetched(shop.remote(n), shop.remote(n).sha256 or "") for n in (0, 1))
            assert (a.tier, b.tier) == (Tier.SSD, Tier.SSD)
            assert names(second.store.folder) == sorted([a.path.name, b.path.name])
            assert (await second.load_once(a)).tier is Tier.SSD
            assert shop.num_asked == 2
            await second.store.close()

    asyncio.run(scenario())


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = write(tmp_path / "a", 1)
        rig = Rig(tmp_path / "store")
        file = rig.store.in_place(path)
        path.unlink()
        with pytest.raises(ModelLoadError, match=r"a \(No such file.*: put it back"):
            await rig.load(file)
        write(path, 1)
        assert (await rig.load(file)).tier is Tier.SSD
        await rig.store.close()

    asyncio.run(scenario())


def test_a_load_that_is_cancelled_holds_nothing_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path / "store", ssd=SLOW)
        a, b = (rig.store.in_place(write(tmp_path / name, 1, 30_000)) for name in "ab")
        load = asyncio.create_task(rig.load(a))
        await until(lambda: a.num_bytes > 0)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        await rig.load_once(b)
        assert (a.num_loads, a.num_instances, a.tier) == (0, 0, Tier.SSD)
        assert rig.told == [("b", "dram")]
        await rig.store.close()

    asyncio.run(scenario())

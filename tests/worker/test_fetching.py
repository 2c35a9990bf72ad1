"""Fetching: a file is there whole and right, or not at all."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from godwit.errors import ModelLoadError
from godwit.worker.fetching import Remote, fetch
from godwit.worker.progress import LoadWatch, Pace
from tests.worker.files import MB, Shop, content, names, opened, sha256, until

DATA = content(1, MB)


async def get(remote: Remote, target: Path, rate: float | None = None) -> None:
    async def make_room(_num_bytes: int) -> None:
        pass

    await fetch(remote, target, make_room, Pace(rate), LoadWatch())


def test_a_file_url_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(DATA)
    url = (tmp_path / "a b").as_uri()
    asyncio.run(get(Remote(url, sha256(DATA)), tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_fetch_that_is_cut_leaves_nothing_and_works_the_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def scenario() -> None:
        async with opened(Shop(DATA, num_cuts=1)) as shop:
            with pytest.raises(ModelLoadError, match=f"cannot fetch {shop.url}/0"):
                await get(shop.remote(), folder / "model")
            assert names(folder) == []
            await get(shop.remote(), folder / "model")
            assert (folder / "model").read_bytes() == DATA
            assert names(folder) == ["model"]

    asyncio.run(scenario())


def test_another_digest_is_refused_and_both_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:
            with pytest.raises(ModelLoadError, match=f"{sha256(DATA)}, not {'0' * 64}"):
                await get(shop.remote(wanted="0" * 64), tmp_path / "model")
            assert names(tmp_path) == []

    asyncio.run(scenario())


def test_an_answer_that_is_no_file_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:
            with pytest.raises(ModelLoadError, match=r"answered 404: correct models\.url"):
                await get(Remote(f"{shop.url}/nothing", "0" * 64), tmp_path / "model")
        with pytest.raises(ModelLoadError, match="cannot fetch"):
            await get(Remote(f"{shop.url}/closed", "0" * 64), tmp_path / "model")
        with pytest.raises(ModelLoadError, match="No such file"):
            await get(Remote((tmp_path / "nowhere").as_uri(), "0" * 64), tmp_path / "model")
        assert names(tmp_path) == []

    asyncio.run(scenario())


def test_a_password_or_signature_in_a_url_is_shown_to_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:
            url = shop.url.replace("//", "//user:secret@") + "/nothing?signature=secret"
            with pytest.raises(ModelLoadError, match=f"{shop.url}/nothing answered 404") as caught:
                await get(Remote(url, "0" * 64), tmp_path / "model")
            assert "secret" not in caught.value.message

    asyncio.run(scenario())
    assert Remote("hf://org/repo/file.gguf", None).shown == "hf://org/repo/file.gguf"
    assert Remote("file:///a/b.gguf", None).shown == "file:///a/b.gguf"


def test_a_fetch_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:
            fetching = asyncio.create_task(get(shop.remote(), tmp_path / "model", rate=10_000.0))
            await until(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            assert fetching.cancelled()
            assert names(tmp_path) == []

    asyncio.run(scenario())


def test_the_hub_tells_where_a_file_is_and_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "hf://org/models/deep/file.gguf"
    asked: list[str] = []

    async def scenario() -> None:
        async with opened(Shop(DATA)) as shop:

            def look_up(where: str) -> SimpleNamespace:
                asked.append(where)
                return SimpleNamespace(location=shop.remote().url, etag=sha256(DATA))

            hub = SimpleNamespace(hf_hub_url="{}:{}".format, get_hf_file_metadata=look_up)
            monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
            await get(Remote(url, None), tmp_path / "model")
            with pytest.raises(ModelLoadError, match="SHA-256"):
                await get(Remote(url, "0" * 64), tmp_path / "other")

    asyncio.run(scenario())
    assert (tmp_path / "model").read_bytes() == DATA
    assert asked == ["org/models:deep/file.gguf"] * 2


def test_without_the_hubs_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelLoadError, match="pip install huggingface_hub"):
        asyncio.run(get(Remote("hf://org/models/file.gguf", None), tmp_path / "model"))

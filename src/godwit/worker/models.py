"""The models of one worker: what each is, where its file is, and how an engine is made of it."""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from godwit import __version__
from godwit.config import ModelSettings, WorkerSettings
from godwit.engines import checkpoint_path, create_engine, describe
from godwit.engines.checkpoints import cache_dir
from godwit.errors import ModelLoadError
from godwit.ports import Engine
from godwit.types import ModelInfo, Tier
from godwit.worker.fetching import PART_SUFFIX, Remote
from godwit.worker.progress import LoadWatch
from godwit.worker.store import CheckpointStore, StoredFile
from godwit.worker.threads import in_thread

# Shares of the machine's memory: weights and KV must leave room for everybody else.
DEVICE_SHARE = 0.5
DRAM_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that this worker can load: what it is, the blocking call that makes its engine, and its file.

    `create` may end early, with ModelLoadError, once the event that it is given is set. Without a `file`
    there is nothing to bring near. `info.is_loaded` and `info.tier` are not kept up to date.
    """

    info: ModelInfo
    create: Callable[[threading.Event], Engine]
    file: StoredFile | None = None


def machine_bytes(share: float) -> int:
    """So much of this machine's memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * share)


def open_store(worker: WorkerSettings, name: str) -> CheckpointStore:
    """The store of the worker called `name`, in a folder of its own."""
    base = cache_dir() / "checkpoints" if worker.checkpoint_dir is None else Path(worker.checkpoint_dir)
    return CheckpointStore(
        base / quote(name, safe=""), dram_bytes(worker), worker.ssd_bytes, dict(emulated_tiers(worker))
    )


def dram_bytes(worker: WorkerSettings) -> int:
    """How many bytes of checkpoints are kept in memory."""
    return machine_bytes(DRAM_SHARE) if worker.dram_bytes is None else worker.dram_bytes


def emulated_tiers(worker: WorkerSettings) -> tuple[tuple[Tier, float], ...]:
    """The tiers that are slowed on purpose, and to how many bytes/s."""
    rates = {
        Tier.DRAM: worker.emulated_dram_bytes_per_s,
        Tier.SSD: worker.emulated_ssd_bytes_per_s,
        Tier.REMOTE: worker.emulated_remote_bytes_per_s,
    }
    return tuple((tier, rate) for tier, rate in rates.items() if rate is not None)


async def describe_model(model: ModelSettings, worker: WorkerSettings, store: CheckpointStore) -> LocalModel:
    """What the worker can say of a model without loading it; ConfigError or ModelLoadError where it cannot.

    A file that has never been fetched is fetched once, since only its header tells; what it told is kept
    beside it and outlives it.
    """
    options: dict[str, object] = dict(model.options)
    if model.chat_template is not None:
        options["chat_template"] = model.chat_template
    file = await _file_of(model, store)
    # Of a folder the engine's own server takes care.
    path = file.path if file is not None else None if model.path is None else Path(model.path)

    def read() -> ModelInfo:
        return describe(
            model.engine, model.name, path, worker.slots, worker.context_tokens, options, model.origin
        )

    def create(cancelled: threading.Event) -> Engine:
        return create_engine(
            model.engine,
            name=model.name,
            path=path,
            slots=worker.slots,
            context_tokens=worker.context_tokens,
            threads=worker.threads,
            prefill_chunk=worker.prefill_chunk,
            options=options,
            origin=model.origin,
            cancelled=cancelled,
        )

    if file is None or file.remote is None:
        return LocalModel(await in_thread(read), create, file)
    notes = _notes_path(file.path, model, worker)
    info = await in_thread(_recall, notes)
    if info is None:
        with store.using(file):
            await store.to_ssd(file, LoadWatch())
            info = await in_thread(read)
            await in_thread(_note, notes, info)
    return LocalModel(info, create, file)


async def _file_of(model: ModelSettings, store: CheckpointStore) -> StoredFile | None:
    if model.url is not None:
        key = model.sha256 or hashlib.sha256(model.url.encode()).hexdigest()
        return store.fetched(Remote(model.url, model.sha256), key)
    path = await in_thread(checkpoint_path, model.engine, model.name, model.path)
    return None if path is None else store.in_place(path)


def _notes_path(path: Path, model: ModelSettings, worker: WorkerSettings) -> Path:
    """Where the description is kept, by all that it depends on."""
    facts = (__version__, model.name, model.engine, model.options, model.chat_template, model.origin)
    told = msgspec.json.encode((*facts, worker.slots, worker.context_tokens))
    return path.with_name(f"{path.name}-{hashlib.sha256(told).hexdigest()[:16]}.json")


def _recall(notes: Path) -> ModelInfo | None:
    try:
        return msgspec.json.decode(notes.read_bytes(), type=ModelInfo)
    except (OSError, msgspec.MsgspecError):
        return None


def _note(notes: Path, info: ModelInfo) -> None:
    part = notes.with_name(notes.name + PART_SUFFIX)
    try:
        part.write_bytes(msgspec.json.encode(info))
        part.replace(notes)
    except OSError as error:
        raise ModelLoadError(f"cannot write {notes}: {error.strerror}; make room there") from error

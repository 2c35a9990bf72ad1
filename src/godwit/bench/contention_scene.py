"""The scene of `godwit bench contention`: few devices, many models, bursts of requests, all files."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from godwit.bench.copies import check_room
from godwit.config import HeadSettings, ModelSettings, Settings, WorkerSettings
from godwit.engines import checkpoint_path, describe
from godwit.errors import ConfigError, GodwitError
from godwit.local import Site
from godwit.sim.workload import arrivals_s, choices, lengths, popularity
from godwit.traces import read_file

QUESTIONS = "gsm8k/test.jsonl"
SPARE_BYTES = 500_000_000
# A request that waits for long is late, which shows in the figures, and not an error.
PLACEMENT_TIMEOUT_S = 900.0


class Emulated(Struct, frozen=True):
    """Bandwidths that are emulated, in MB/s: this machine has one SSD and one DRAM for all workers."""

    ssd_mb_per_s: float = 40.0
    dram_mb_per_s: float = 200.0


class Scene(Struct, frozen=True):
    """The cluster: `num_models` copies of `originals` in turn under other names, the most popular first.

    A device has room for `device_models` instances, DRAM for `dram_models` checkpoints, of the largest each.
    """

    originals: tuple[ModelSettings, ...] = (
        ModelSettings(name="smollm2-135m"),
        ModelSettings(name="gemma3-270m"),
    )
    num_workers: int = 3
    num_models: int = 6
    device_models: int = 1
    dram_models: int = 3
    slots: int = 2
    context_tokens: int = 768
    emulated: Emulated = Emulated()

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """All models, not yet with files."""
        turns = [self.originals[number % len(self.originals)] for number in range(self.num_models)]
        return tuple(replace(one, name=f"{one.name}-{number + 1}") for number, one in enumerate(turns))


class Load(Struct, frozen=True):
    """What the clients ask: `rate_per_s` on average, in bursts with this `cv`, for `minutes`.

    Models are as popular as 1/rank^`exponent`; outputs are lognormal in length, cut to `most_tokens`. Answers
    of this length outlast most moves, and there are enough of them that some ten moves are made in `minutes`.
    """

    minutes: float = 5.0
    rate_per_s: float = 0.4
    cv: float = 8.0
    seed: int = 3
    exponent: float = 0.5
    median_tokens: float = 80.0
    sigma: float = 0.7
    least_tokens: int = 16
    most_tokens: int = 384


class Ask(Struct, frozen=True):
    """One request, `at_s` after the beginning."""

    at_s: float
    model: str
    prompt: str
    max_tokens: int

    @property
    def body(self) -> dict[str, Any]:
        """As it is sent: greedy and of a fixed length, so that it is the same work under every policy."""
        fixed = {"max_tokens": self.max_tokens, "ignore_eos": True, "temperature": 0}
        return {"model": self.model, "prompt": self.prompt, **fixed}


def make_asks(load: Load, models: tuple[ModelSettings, ...], questions: tuple[str, ...]) -> tuple[Ask, ...]:
    """All requests in order of time; the same seed gives the same ones."""
    rng = np.random.default_rng(load.seed)
    times_s = arrivals_s(rng, load.rate_per_s, load.cv, load.minutes * 60)
    count = len(times_s)
    chosen = choices(rng, popularity(len(models), load.exponent), count)
    asked = rng.integers(0, len(questions), count)
    tokens = lengths(rng, count, load.median_tokens, load.sigma, load.least_tokens, load.most_tokens)
    return tuple(
        Ask(float(at_s), models[model].name, questions[question], int(num_tokens))
        for at_s, model, question, num_tokens in zip(times_s, chosen, asked, tokens, strict=True)
    )


class _Row(Struct):
    question: str


def read_questions(data: Path) -> tuple[str, ...]:
    """The questions of GSM8K's test split; ConfigError where they are not there."""
    path = data / QUESTIONS
    lines = read_file(path).splitlines()
    try:
        return tuple(msgspec.json.decode(line, type=_Row).question for line in lines)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not GSM8K's test split: {error}") from error


class Stage(Struct, frozen=True):
    """A scene with its files in `folder`, by (worker, model), and what fits where, in bytes."""

    scene: Scene
    folder: Path
    files: Mapping[tuple[str, str], Path]
    device_bytes: int
    dram_bytes: int

    def settings(self, policy: str, store: Path | None = None) -> Settings:
        """The head's settings under a policy, and what the workers have in common."""
        scene, emulated = self.scene, self.scene.emulated
        worker = WorkerSettings(
            slots=scene.slots,
            context_tokens=scene.context_tokens,
            device_bytes=self.device_bytes,
            dram_bytes=self.dram_bytes,
            emulated_ssd_bytes_per_s=emulated.ssd_mb_per_s * 1e6,
            emulated_dram_bytes_per_s=emulated.dram_mb_per_s * 1e6,
        )
        head = HeadSettings(
            port=0,
            policy=policy,
            placement_timeout_s=PLACEMENT_TIMEOUT_S,
            store=None if store is None else str(store),
            max_events=1_000_000,
        )
        return Settings(head=head, worker=worker, models=scene.models)

    def sites(self) -> dict[str, Site]:
        """Each worker has all models on SSD and begins with some in DRAM, the next one with others."""
        sites = {}
        models, count = self.scene.models, self.scene.num_models
        for number, worker in enumerate(worker_names(self.scene)):
            step = max(1, count // self.scene.num_workers)
            near = {(number * step + i) % count for i in range(min(self.scene.dram_models, count))}
            sites[worker] = Site(
                models=tuple(
                    replace(
                        model,
                        path=str(self.files[worker, model.name]),
                        preload="dram" if i in near else "none",
                    )
                    for i, model in enumerate(models)
                )
            )
        return sites


def worker_names(scene: Scene) -> list[str]:
    """As `LocalCluster` calls them."""
    return [f"w{number}" for number in range(1, scene.num_workers + 1)]


@contextmanager
def open_stage(scene: Scene, folder: Path | None = None) -> Iterator[Stage]:
    """Copy every model's file for every worker into a temporary folder (in `folder`); all goes at the end.

    The workers share this machine's page cache, and so do names for one file: what one has in memory all
    would have. ConfigError or GodwitError where a model is missing or there is no room.
    """
    originals = [_original(model) for model in scene.originals]
    infos = [
        describe(model.engine, model.name, path, scene.slots, scene.context_tokens, dict(model.options))
        for model, path in zip(scene.originals, originals, strict=True)
    ]
    with tempfile.TemporaryDirectory(prefix="godwit-contention-", dir=folder) as made:
        chosen = [originals[number % len(originals)] for number in range(scene.num_models)]
        check_room(
            Path(made),
            scene.num_workers * sum(path.stat().st_size for path in chosen),
            SPARE_BYTES,
            "workers'",
        )
        files = {}
        for worker in worker_names(scene):
            (Path(made) / worker).mkdir()
            for model, original in zip(scene.models, chosen, strict=True):
                files[worker, model.name] = Path(made) / worker / f"{model.name}{original.suffix}"
                shutil.copy(original, files[worker, model.name])
        yield Stage(
            scene,
            Path(made),
            files,
            device_bytes=scene.device_models * max(info.device_bytes for info in infos),
            dram_bytes=scene.dram_models * max(info.checkpoint_bytes for info in infos),
        )


def _original(model: ModelSettings) -> Path:
    path = checkpoint_path(model.engine, model.name, model.path)
    if path is None or not path.is_file():
        raise GodwitError(f"{model.name} has no file, so there is nothing to load from SSD")
    return path

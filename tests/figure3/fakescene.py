"""The scene with fake engines and small files: the same in seconds."""

from pathlib import Path

from godwit.config import ModelSettings
from godwit.figure3.report import Emulated
from godwit.figure3.scene import Scene

A_FILE_BYTES, B_FILE_BYTES = 40_000, 600_000
DEVICE_BYTES = 1_000_000


def fake_scene(folder: Path) -> Scene:
    """B comes from SSD in 1.5 s, from DRAM at once; a token takes 8 ms."""
    return Scene(
        a=_model(folder, "a", A_FILE_BYTES),
        b=_model(folder, "b", B_FILE_BYTES),
        emulated=Emulated(ssd_mb_per_s=0.4, dram_mb_per_s=20.0),
        a_tokens=160,
        b_at=20,
        b_tokens=8,
    )


def _model(folder: Path, name: str, num_bytes: int) -> ModelSettings:
    path = folder / f"{name}.model"
    path.write_bytes(name.encode() * num_bytes)
    return ModelSettings(
        name=name,
        path=str(path),
        engine="fake",
        options={"decode_s": 0.008, "prefill_tokens_per_s": 20_000.0, "device_bytes": DEVICE_BYTES},
    )

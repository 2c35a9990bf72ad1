"""The same scenes on real processes and in the simulator: the same decisions and transitions, like times."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.parity import Scene, differences, late, table
from tests.sim.parity_real import RealPlay
from tests.sim.parity_scenes import SCENES
from tests.sim.parity_sim import SimulatedPlay

pytestmark = pytest.mark.anyio

MEMORY = Path("/dev/shm")
PLAYS = 3
"""A machine that is busy for a moment is late once; a model that is wrong is wrong each time."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """A folder for checkpoints, in memory where that can be had: a busy disk may take seconds for a byte."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="godwit-parity-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_cluster_and_simulator_agree(scene: Scene, tmp_path: Path, files: Path) -> None:
    simulated = SimulatedPlay(scene).play()
    for number in range(PLAYS):
        own = [folder / str(number) for folder in (tmp_path, files)]
        for folder in own:
            folder.mkdir(exist_ok=True)
        real = await RealPlay(scene, *own).play()
        problems = differences(real, simulated)
        assert not problems, "\n".join(("", *problems, "", table(real, simulated)))
        if not (problems := late(real, simulated)):
            return
    pytest.fail("\n".join(("", *problems, "", table(real, simulated))))

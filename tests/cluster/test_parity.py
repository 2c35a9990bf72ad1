"""The same scenes on real processes and in the simulator: the same decisions and transitions, like times."""

from pathlib import Path

import pytest

from tests.sim.parity import Scene, differences, table
from tests.sim.parity_real import RealPlay
from tests.sim.parity_scenes import SCENES
from tests.sim.parity_sim import SimulatedPlay

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_cluster_and_simulator_agree(scene: Scene, tmp_path: Path) -> None:
    simulated = SimulatedPlay(scene).play()
    real = await RealPlay(scene, tmp_path).play()
    problems = differences(real, simulated)
    assert not problems, "\n".join(("", *problems, "", table(real, simulated)))

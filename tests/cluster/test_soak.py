"""Half a minute of `godwit bench soak`."""

import pytest

from godwit.bench.soak import run_soak

pytestmark = pytest.mark.anyio


async def test_soak() -> None:
    """Random load, a move every second and kills: no stream breaks, no slot or process is left behind."""
    lines: list[str] = []
    report = await run_soak(0.5, seed=1, workers=3, progress=lines.append)
    assert report.broken == (), lines
    assert report.slots_leaked == 0, lines
    assert report.processes_leaked == 0
    assert report.is_memory_flat, report.memory
    assert report.ok
    assert report.streams_done >= 50
    assert report.moves_done >= 5
    assert report.kills >= 2
    assert report.failovers >= 1
    assert lines

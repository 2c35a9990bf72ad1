"""The scene on real processes, with fake engines: what happens under two policies, not how long it takes."""

from pathlib import Path

import uvloop

from godwit.figure3.play import play
from godwit.figure3.scene import SERVER_1, SERVER_2, open_stage
from godwit.figure3.timeline import Kind
from tests.figure3.fakescene import fake_scene


def test_live_migration_moves_a_and_preemption_interrupts_it(tmp_path: Path) -> None:
    said: list[str] = []
    with open_stage(fake_scene(tmp_path)) as stage:
        report = uvloop.run(
            play(stage, said.append, policies=("preemption", "live_migration"), logs=tmp_path)
        )
    assert report.ok
    preemption, live = report.policies["preemption"], report.policies["live_migration"]
    # Both free server 2 for B, and A goes on at server 1.
    assert preemption.a_servers == live.a_servers == (SERVER_2, SERVER_1)
    assert preemption.b_servers == live.b_servers == (SERVER_2,)
    assert preemption.how == "preempted"
    assert preemption.recomputed_tokens > 0
    assert live.how in ("kv", "split", "tokens")
    assert {run.policy: len(run.a_ids) for run in report.runs} == {"preemption": 160, "live_migration": 160}
    for run in report.runs:
        seen = {(bar.server, bar.kind, bar.label) for bar in run.bars}
        assert {
            (SERVER_2, Kind.DECODE, "A"),
            (SERVER_1, Kind.LOAD, "A"),
            (SERVER_1, Kind.RESUME, "A"),
            (SERVER_1, Kind.DECODE, "A"),
            (SERVER_2, Kind.LOAD, "B"),
            (SERVER_2, Kind.DECODE, "B"),
        } <= seen, run.decisions
    assert [text for text in said if "rehearsal" not in text] == ["preemption", "live_migration"]

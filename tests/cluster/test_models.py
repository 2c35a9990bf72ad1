"""Real workers: models that are added serve, and loads and moves teach what they take."""

from pathlib import Path

import pytest

from godwit.admin.shapes import Estimates, ModelAnswers
from godwit.client import decode
from godwit.config import ModelSettings
from godwit.protocol.entry import MoveRecord
from godwit.types import Tier
from tests.cluster.harness import Cluster, check_whole, fake, settings

pytestmark = pytest.mark.anyio
NUM_BYTES = 4_000_000


async def test_a_model_is_added_served_and_removed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(bytes(NUM_BYTES))
    added = ModelSettings(name="org/added:1", path=str(checkpoint), engine="fake", preload="none")
    body = {"model": added.name, "prompt": "hello", "max_tokens": 20, "temperature": 0}
    async with Cluster(settings(fake())) as cluster:
        answers = decode(await cluster.admin.add_model(added), ModelAnswers)
        assert answers == ModelAnswers(added.name, {"w1": None, "w2": None})
        await check_whole(cluster.open(body), body)
        status = await cluster.state()
        states = {model.is_loaded: model for worker in status.workers for model in worker.models[1:]}
        assert states[True].checkpoint_bytes == NUM_BYTES
        assert states[False].tier is Tier.SSD
        estimates = decode(await cluster.admin.estimates_json(), Estimates).estimates
        (learnt,) = [load for load in estimates.loads if load.worker is not None]
        assert (learnt.tier, learnt.n) == (Tier.SSD, 1)
        kinds = [decode(line, dict)["kind"] async for line in cluster.admin.events()]
        assert kinds[-5:] == ["RequestQueued", "Load", "Loaded", "Start", "RequestEnded"]
        removed = decode(await cluster.admin.remove_model(added.name), ModelAnswers)
        assert removed == answers


async def test_a_move_teaches_what_a_resume_takes(fake_cluster: Cluster) -> None:
    stream = await fake_cluster.started({"model": "fake", "prompt": "hello", "max_tokens": 5000})
    ways: list[MoveRecord] = []
    for _ in range(2):
        here = await fake_cluster.admin.owner(stream.request)
        ways.append(await fake_cluster.move(stream.request, "w2" if here == "w1" else "w1"))
    await stream.leave()
    assert [way.outcome for way in ways] == ["done", "done"]
    estimates = decode(await fake_cluster.admin.estimates_json(), Estimates).estimates
    seen = {
        one.worker: one.n for one in estimates.resumes if one.model == "fake" and one.provenance == "learnt"
    }
    assert seen == {None: 2, "w1": 1, "w2": 1}
    assert estimates.errors["resume"].n == 2

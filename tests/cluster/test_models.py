"""Models that are added to a running cluster of real workers serve, and teach what their loads take."""

from pathlib import Path

import pytest

from godwit.admin.shapes import Estimates, ModelAnswers
from godwit.client import decode
from godwit.config import ModelSettings
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

"""Models whose KV cannot be cut into ranges, recurrent and hybrid: known at load, and recomputed exactly."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from godwit.engines import create_engine, describe
from godwit.ports import SequenceSpec
from godwit.types import Sampling
from tests.engines.rig import Rig
from tests.engines.tinymodels import write_hybrid, write_mamba

LENGTH = 40
GREEDY = Sampling(seed=3, max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
WARM = Sampling(seed=3, max_tokens=LENGTH, temperature=1.0, ignore_eos=True)


@pytest.fixture(scope="module", params=[write_mamba, write_hybrid], ids=["recurrent", "hybrid"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    write: Callable[[Path], Path] = request.param
    path = write(tmp_path_factory.mktemp("models") / "tiny.gguf")
    assert describe("llamacpp", "tiny", path, 3, 256).device_bytes >= path.stat().st_size
    rig = Rig(create_engine("llamacpp", name="tiny", path=path, slots=3, context_tokens=256))
    yield rig
    assert rig.engine.free_slots == rig.engine.slots
    rig.engine.close()


def test_it_is_known_at_load_that_ranges_cannot_be_exported(rig: Rig) -> None:
    assert rig.engine.kv_layout is None


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("cut", [1, 17, LENGTH - 1])
def test_a_recomputed_request_goes_on_as_before(rig: Rig, sampling: Sampling, cut: int) -> None:
    prompt = rig.engine.tokenize("The godwit flies over the sea. " * 4, add_special=True)
    whole = rig.run(prompt, sampling)
    assert len(whole) == LENGTH and len(set(whole)) > 10, "too dull a model to tell states apart"
    assert rig.run(prompt, sampling, whole[:cut]) == whole[cut:]


def test_a_slot_keeps_nothing_of_its_former_request(rig: Rig) -> None:
    """A row that is alone in its pass has a companion in a spare sequence: no state may leak from either."""
    one, other = (rig.engine.tokenize(text, add_special=True) for text in ("a", "The sea"))
    alone = rig.run(one, GREEDY)
    for _ in range(rig.engine.slots):
        rig.run(other, WARM)
        assert rig.run(one, GREEDY) == alone


def test_requests_side_by_side_are_all_served(rig: Rig) -> None:
    prompts = [rig.engine.tokenize(text, add_special=True) for text in ("The sea", "A bird", "Mud")]
    opened = [rig.open(SequenceSpec(tuple(prompt), (), GREEDY)) for prompt in prompts]
    for request in opened:
        rig.engine.generate(request)
    assert [len(rig.finish(request)[0]) for request in opened] == [LENGTH] * 3

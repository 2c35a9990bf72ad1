"""One loaded engine of each kind for all tests of the contract."""

import importlib.util
from collections.abc import Iterator

import pytest

from godwit.engines import create_engine
from godwit.engines.served import ServedEngine
from tests.engines.rig import Rig
from tests.engines.scriptedserver import ScriptedServer
from tests.engines.servedrig import Make

SLOTS = 3
CONTEXT_TOKENS = 400


@pytest.fixture(scope="session")
def fake_rig() -> Iterator[Rig]:
    rig = Rig(
        create_engine(
            "fake", name="fake", slots=SLOTS, context_tokens=CONTEXT_TOKENS, options={"decode_s": 0.002}
        )
    )
    yield rig
    rig.engine.close()


@pytest.fixture(scope="session")
def llama_rig() -> Iterator[Rig]:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    rig = Rig(create_engine("llamacpp", name="smollm2-135m", slots=SLOTS, context_tokens=CONTEXT_TOKENS))
    yield rig
    rig.engine.close()


@pytest.fixture(scope="session")
def server_rig() -> Iterator[Rig]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    engine = create_engine("llama-server", name="smollm2-135m", slots=SLOTS, context_tokens=CONTEXT_TOKENS)
    rig = Rig(engine)
    yield rig
    rig.engine.close()


@pytest.fixture(scope="session")
def served_rig() -> Iterator[Rig]:
    server = ScriptedServer(slots=SLOTS, context_tokens=CONTEXT_TOKENS, answer_s=0.002)
    rig = Rig(ServedEngine(server, server))
    yield rig
    rig.engine.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes servers with their engines, which are closed at the end."""
    made: list[tuple[ScriptedServer, Rig]] = []

    def make_one(*, ships: bool = True, **options: int) -> tuple[ScriptedServer, Rig]:
        server = ScriptedServer(**options)
        made.append((server, Rig(ServedEngine(server, server if ships else None))))
        return made[-1]

    yield make_one
    for server, rig in made:
        for gate in list(server.gates.values()):
            gate.open()
        rig.engine.close()
        assert server.is_closed


RIGS = {"fake": "fake_rig", "llamacpp": "llama_rig", "llama-server": "server_rig", "served": "served_rig"}


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    yield from checked(request)


@pytest.fixture(params=["fake", "llamacpp"])
def kv_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Of the engines that export ranges of KV."""
    yield from checked(request)


def checked(request: pytest.FixtureRequest) -> Iterator[Rig]:
    found: Rig = request.getfixturevalue(RIGS[request.param])
    yield found
    assert found.engine.free_slots == SLOTS, "the test left a slot taken"

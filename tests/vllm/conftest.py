"""Two vLLM servers on this machine's CPUs, started by the engine as a worker would, for all tests here."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from godwit.config import ModelSettings, MoveSettings, WorkerSettings
from godwit.engines.hf import find_folder
from godwit.engines.served import ServedEngine
from godwit.engines.vllm import VllmOptions, VllmServer
from godwit.types import ModelName
from tests.cluster.harness import Cluster, settings
from tests.engines.rig import Rig

MODEL = ModelName("smollm2-135m")
CONTEXT_TOKENS = 2048
SLOTS = 2
FLAGS = "--enforce-eager --block-size 32"
LOOPBACK = "UCX_NET_DEVICES=lo UCX_TLS=tcp,self VLLM_HOST_IP=127.0.0.1"


def started(core: int) -> VllmOptions:
    """A child process on one core, exact as float32 is."""
    return VllmOptions(
        python=os.environ["GODWIT_VLLM_PYTHON"],
        dtype="float32",
        nixl=True,
        flags=FLAGS,
        cores=str(core),
        env=f"VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND={core} {LOOPBACK}",
    )


def made_server(options: VllmOptions, origin: str | None = None) -> VllmServer:
    """A server of the built-in model; blocks until it answers."""
    folder = find_folder(MODEL, None, os.environ["GODWIT_VLLM_PYTHON"])
    return VllmServer(
        folder, MODEL, slots=SLOTS, context_tokens=CONTEXT_TOKENS, options=options, origin=origin
    )


def attached(server: VllmServer, origin: str | None = None) -> VllmServer:
    """A second client of a server that runs."""
    return made_server(VllmOptions(url=server.url, dtype="float32", nixl=True), origin)


@pytest.fixture(scope="session")
def servers() -> Iterator[list[VllmServer]]:
    """Two servers, started and stopped as children; both start at the same time."""
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(made_server, [started(core) for core in range(2)]))
    yield made
    for one in made:
        asyncio.run(one.close())


@pytest.fixture(scope="session")
def rigs(servers: list[VllmServer]) -> Iterator[list[Rig]]:
    """An engine for each server."""
    clients = [attached(one) for one in servers]
    rigs = [Rig(ServedEngine(one, one.kv)) for one in clients]
    yield rigs
    for rig in rigs:
        rig.engine.close()


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What serves in production: asyncio with uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 -- its loop is needed
    servers: list[VllmServer],
) -> AsyncIterator[Cluster]:
    """Two workers, each of which uses one of the servers by its URL."""
    room = WorkerSettings(slots=SLOTS, context_tokens=CONTEXT_TOKENS, stall_after_s=120.0)
    moves = MoveSettings(method="tokens", timeout_s=120.0)
    chosen = {}
    for name, one in zip(("w1", "w2"), servers, strict=True):
        python = os.environ["GODWIT_VLLM_PYTHON"]
        options: dict[str, str | int | float | bool] = {
            "url": one.url,
            "dtype": "float32",
            "nixl": True,
            "python": python,
        }
        model = ModelSettings(name=MODEL, engine="vllm", options=options)
        chosen[name] = settings(model, worker=room, moves=moves)
    async with Cluster(chosen["w1"], variants={"w2": chosen["w2"]}) as cluster:
        yield cluster

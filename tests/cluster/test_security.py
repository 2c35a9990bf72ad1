"""Who gets in: keys for clients and operators, a join token for workers, loopback without any of them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from godwit.config import SecuritySettings, Settings, WorkerSettings
from godwit.processes import start_worker
from tests.cluster.harness import fake, settings
from tests.cluster.headprocess import HeadCluster, free_port

pytestmark = pytest.mark.anyio

SECURITY = SecuritySettings(
    api_keys=("client-key-1", "client-key-2"), join_token="join-me", admin_key="admin-key"
)
BEARER = {"Authorization": f"Bearer {SECURITY.admin_key}"}


PEER_PORT = free_port()


def secured(security: SecuritySettings = SECURITY) -> Settings:
    """Settings of a worker that has `security`, listens on PEER_PORT for peers, and does nothing else."""
    usual = settings(fake(decode_s=0.005), worker=WorkerSettings(peer_port=PEER_PORT))
    return replace(usual, security=security)


@pytest.fixture(scope="module")
async def guarded(
    anyio_backend: object,  # noqa: ARG001 -- its loop is needed
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[HeadCluster]:
    """A head with all keys, and a worker that has the join token."""
    async with HeadCluster(secured(), tmp_path_factory.mktemp("guarded"), 1) as cluster:
        yield cluster


async def test_api_keys(guarded: HeadCluster) -> None:
    """Each key opens the API, others and none do not."""
    for key in SECURITY.api_keys:
        async with openai.AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key=key) as client:
            answer = await client.completions.create(model="fake", prompt="x", max_tokens=3)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 3
    for key in ("client-key", "admin-key", "join-me"):
        async with openai.AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="API key is wrong"):
                await client.completions.create(model="fake", prompt="x", max_tokens=3)
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "status"),
        ("GET", "costs"),
        ("POST", "migrate"),
        ("POST", "drain"),
        ("POST", "scheduler/restart"),
    ],
)
async def test_admin_key(guarded: HeadCluster, method: str, path: str) -> None:
    """Every admin route wants the admin key; a client's key is none."""
    for headers in ({}, {"Authorization": "Bearer client-key-1"}, {"Authorization": "Bearer join-me"}):
        async with guarded.session.request(
            method, f"{guarded.url}/admin/{path}", headers=headers
        ) as response:
            assert response.status == 401
            assert "admin key" in (await response.json())["error"]["message"]


async def test_link_without_token(guarded: HeadCluster) -> None:
    """The route for workers is closed to those without the token."""
    for headers in ({}, BEARER):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await guarded.session.ws_connect(f"{guarded.url}/link", headers=headers)
        assert caught.value.status == 401


async def test_wrong_join_token(guarded: HeadCluster, tmp_path: Path) -> None:
    """The worker ends and says what to do; the head notes it; neither writes a token down."""
    wrong = replace(secured(SecuritySettings(join_token="let-me-in")), worker=WorkerSettings())
    log = tmp_path / "w9.log"
    worker = await start_worker("w9", guarded.url, wrong, log)
    async with asyncio.timeout(30):
        assert await worker.wait() == 1
    assert "the join token was refused: set security.join_token" in " ".join(log.read_text().split())
    assert "Traceback" not in log.read_text()
    assert guarded.head_wrote("refused")
    for text in (log.read_text(), guarded.head_log.read_text()):
        for secret in ("let-me-in", "join-me", "admin-key", "client-key"):
            assert secret not in text
    assert [one.name for one in (await guarded.state()).workers] == ["w1"]


async def test_peers_need_the_token(guarded: HeadCluster) -> None:
    """Nobody can hand a worker a request without the join token."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await guarded.session.ws_connect(f"http://127.0.0.1:{PEER_PORT}/peer")
    assert caught.value.status == 401


async def godwit(*arguments: str) -> tuple[int, str]:
    """Run the command to its end; status and output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GODWIT_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "godwit", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
    )
    try:
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    return process.returncode or 0, " ".join(output.decode().split())


@pytest.mark.parametrize("command", [("head",), ("serve", "--engine", "fake")])
async def test_refuses_to_listen(command: tuple[str, ...]) -> None:
    """An address that others can reach needs keys for clients and a token for workers."""
    status, output = await godwit(*command, "--host", "0.0.0.0", "--port", "0")
    assert status == 2
    assert "head.host: 0.0.0.0 can be reached from other machines" in output
    assert "security.api_keys" in output
    assert "security.join_token" in output
    assert "--insecure" in output


async def test_worker_refuses_to_listen(tmp_path: Path) -> None:
    """A worker's peer address is such an address too."""
    config = tmp_path / "godwit.toml"
    config.write_text('[worker]\npeer_host = "0.0.0.0"\n[[models]]\nname = "fake"\nengine = "fake"\n')
    status, output = await godwit("worker", "--join", "http://127.0.0.1:1", "--config", str(config))
    assert status == 2
    assert "worker.peer_host: 0.0.0.0 can be reached from other machines" in output
    assert "security.join_token" in output

"""Three hosts, by the docs' commands: moves with TLS and keys, who is refused, a host that is cut off."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Status, check_whole
from tests.cluster.hosts import HEAD, B, C, Hosts, make_certificates, script, why_no_hosts
from tests.cluster.hostscluster import LISTENS, URL, HostsCluster, ended, head_script, worker_script, wrote

pytestmark = pytest.mark.anyio

PEER_PORT = 8444
OTHER_AUTHORITY = "unable to get local issuer certificate"
OTHER_HOST = "certificate is not valid for '{}'"
RELAYED = "relaying through the head"
LINK_ENDED = "link to the head ended"


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "The godwit flies", "max_tokens": 200, "temperature": 0, **changes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and secrets, and in `other` those of another authority for the same hosts."""
    if (why := why_no_hosts()) is not None:
        pytest.skip(f"three hosts need network namespaces and certificates: {why}")
    made = tmp_path_factory.mktemp("hosts")
    make_certificates(made)
    make_certificates(made / "other")
    return made


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """The same for a cluster that a test has for itself: its logs go there."""
    return Path(
        shutil.copytree(folder, tmp_path / "cluster", ignore=shutil.ignore_patterns("*.log", "*.db*"))
    )


@pytest.fixture
def hosts(folder: Path) -> Iterator[Hosts]:  # noqa: ARG001 -- it skips
    with Hosts() as made:
        yield made


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 -- its loop is needed
    folder: Path,
) -> AsyncIterator[HostsCluster]:
    """A cluster that the tests leave as it was, on hosts of its own."""
    with Hosts() as made:
        async with HostsCluster(made, folder) as started:
            yield started


def other(worker: str) -> str:
    return C if worker == B else B


def on(status: Status, worker: str) -> list[str]:
    return [one.id for one in status.requests if one.worker == worker]


async def serves_everywhere(cluster: HostsCluster) -> None:
    """Both workers take new requests, and answer them."""
    await cluster.is_idle()
    streams = [await cluster.started(body(), 1) for _ in range(2)]
    status = await cluster.state()
    assert [len(on(status, host)) for host in (B, C)] == [1, 1]
    for stream in streams:
        await check_whole(stream, body())


def test_nothing_of_the_hosts_stays(folder: Path) -> None:  # noqa: ARG001 -- it skips
    before = sorted(path.name for path in Path("/sys/class/net").iterdir())
    with Hosts() as made:
        holders = made.holders
        assert len(holders) == 4
    assert not [pid for pid in holders if Path(f"/proc/{pid}").exists()]
    assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == before


class TestServed:
    """With the right certificates, keys and token."""

    @pytest.mark.parametrize("method", ["tokens", "kv"])
    async def test_a_stream_moves_between_hosts(self, cluster: HostsCluster, method: str) -> None:
        """There and back, and the answer is the unmoved one. KV goes by the workers' own links alone."""
        stream = await cluster.started(body(), 10)
        for _ in range(2):
            here = (await cluster.find(stream.request)).worker or ""
            record = await cluster.move(stream.request, other(here), method=method)
            assert (record.outcome, record.method, record.kv_problem) == ("done", method, None)
        await check_whole(stream, body())
        for host in (B, C):
            assert RELAYED not in cluster.log_of(host)

    @pytest.mark.parametrize("host", [B, C])
    async def test_peers_speak_tls(self, cluster: HostsCluster, host: str) -> None:
        """The peer port shows the host's certificate, and answers nobody who speaks no TLS."""

        def ask(tls: ssl.SSLContext | None) -> bytes:
            with cluster.hosts.sockets(HEAD)((socket.AF_INET, socket.SOCK_STREAM, 0)) as plain:
                plain.settimeout(10)
                plain.connect((host, PEER_PORT))
                with plain if tls is None else tls.wrap_socket(plain, server_hostname=host) as connection:
                    connection.sendall(f"GET /peer HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    return connection.recv(100)

        trusting = ssl.create_default_context(cafile=str(cluster.logs / "ca.pem"))
        assert (await asyncio.to_thread(ask, trusting)).startswith(b"HTTP/1.1 401")
        assert not (await asyncio.to_thread(ask, None)).startswith(b"HTTP")

    async def test_the_docs_commands_with_a_real_model(self, hosts: Hosts, own_folder: Path) -> None:
        """Head, workers, a client with curl, an operator who moves a chat: as docs/deployment.md has it."""
        question = [{"role": "user", "content": "Tell me about a bird that crosses an ocean."}]
        chat = {"model": "smollm2-135m", "messages": question, "temperature": 0, "ignore_eos": True}
        async with HostsCluster(hosts, own_folder, is_fake=False) as cluster:
            status, output = await ended(await cluster.run_on(HEAD, script("A client"), log="client"))
            assert status == 0, output
            assert output.count("data: ") > 40
            assert output.endswith("data: [DONE]")
            stream = await cluster.started({**chat, "max_tokens": 3000}, 10)
            here = (await cluster.find(stream.request)).worker or ""
            commands = script("An operator").replace("REQUEST", stream.request).replace(C, other(here))
            # Of all methods the one that promises the same tokens, however close a draw is.
            operator = await cluster.run_on(HEAD, commands, ("--method kv",), log="operator")
            status, output = await ended(operator)
            assert status == 0, output
            assert await cluster.outcomes(stream.request) == [("kv", "done")]
            await stream.has(len(stream.answer.only.ids) + 20)
            await stream.leave()
            moved = stream.answer.only
            unmoved = await cluster.answer({**chat, "max_tokens": len(moved.ids)})
            assert unmoved.only.ids == moved.ids
            assert unmoved.only.text.startswith(moved.text)


class TestRefused:
    """Whoever lacks the right key, token or certificate, with a message that says what to do."""

    @pytest.mark.parametrize("key", [None, "wrong", "join-token", "admin-key"])
    async def test_clients_without_an_api_key(self, cluster: HostsCluster, key: str | None) -> None:
        shown = cluster.secret(key) if key in ("join-token", "admin-key") else key
        async with cluster.client(shown) as session:
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions")):
                async with session.request(method, URL + path, json=body()) as response:
                    assert response.status == 401
                    assert "API key" in (await response.json())["error"]["message"]

    async def test_a_worker_with_a_wrong_join_token(self, cluster: HostsCluster) -> None:
        """It ends and says what to do, the head notes it, and nobody writes a token down."""
        commands = worker_script(B).replace("8444", "8445").replace("$(cat join-token)", "let-me-in")
        status, output = await ended(await cluster.run_on(B, commands, ("--name late",), log="late"))
        assert status == 1
        assert "the join token was refused: set security.join_token (GODWIT_JOIN_TOKEN) as the head" in output
        assert "Traceback" not in output
        assert "worker refused" in cluster.log_of(HEAD)
        for text in (output, cluster.log_of(HEAD)):
            assert "let-me-in" not in text
            assert cluster.secret("join-token") not in text
        assert [worker.name for worker in (await cluster.state()).workers] == [B, C]

    @pytest.mark.parametrize(
        ("certificate", "why"),
        [(f"other/{HEAD}", OTHER_AUTHORITY), (C, OTHER_HOST.format(HEAD))],
        ids=["of another authority", "of another host"],
    )
    async def test_a_head_with_a_wrong_certificate(
        self, cluster: HostsCluster, certificate: str, why: str
    ) -> None:
        """The worker ends and says why; it has not shown its token."""
        commands = head_script(certificate).replace("8443", "9443").replace(" --store godwit.db", "")
        head = await cluster.run_on(HEAD, commands, log=f"impostor-{certificate.replace('/', '-')}")
        try:
            await wrote(head, LISTENS)
            joining = worker_script(B).replace("8443", "9443").replace("8444", "8445")
            status, output = await ended(await cluster.run_on(B, joining, log=f"deceived-{len(certificate)}"))
        finally:
            await head.stop()
        assert status == 1
        assert f"the certificate of https://{HEAD}:9443/link was refused: " in output
        assert why in output
        assert "SSL_CERT_FILE" in output
        for log in (output, head.log.read_text()):
            assert "Traceback" not in log
            assert "worker joined" not in log

    @pytest.mark.parametrize(
        ("certificate", "why"),
        [(f"other/{C}", OTHER_AUTHORITY), (B, OTHER_HOST.format(C))],
        ids=["of another authority", "of another host"],
    )
    async def test_a_peer_with_a_wrong_certificate(
        self, hosts: Hosts, own_folder: Path, certificate: str, why: str
    ) -> None:
        """The head relays tokens, KV is computed, and the streams are the unmoved ones."""
        for end in (".pem", "-key.pem"):
            (own_folder / f"{C}{end}").write_text((own_folder / f"{certificate}{end}").read_text())
        async with HostsCluster(hosts, own_folder) as cluster:
            for method, became in (("kv", "kv→tokens"), ("tokens", "tokens")):
                stream = await cluster.started(body(), 5)
                if (await cluster.find(stream.request)).worker == C:
                    assert (await cluster.move(stream.request, B, method="tokens")).outcome == "done"
                record = await cluster.move(stream.request, C, method=method)
                assert (record.outcome, record.method) == ("done", became)
                await check_whole(stream, body())
            (line,) = [line for line in cluster.log_of(B).splitlines() if RELAYED in line]
            assert f"the certificate of https://{C}:{PEER_PORT}/peer was refused: " in line
            assert why in line
            assert '"level": "warning"' in line

    async def test_a_certificate_renewed_under_running_workers(self, hosts: Hosts, own_folder: Path) -> None:
        """Workers that were linked wait for a head that they trust again, and serve it."""
        async with HostsCluster(hosts, own_folder) as cluster:
            await cluster.workers[HEAD].stop()
            await cluster.start_head(f"other/{HEAD}")
            for host in (B, C):
                await cluster.wait_for_log(
                    host, f"the certificate of {URL}/link was refused: {OTHER_AUTHORITY}"
                )
            await cluster.workers[HEAD].stop()
            await cluster.start_head()
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            await serves_everywhere(cluster)


class TestCutOff:
    """A host whose cable is pulled out of the switch, and put back."""

    @pytest.mark.parametrize("worker_dead_after_s", [3, 60], ids=["it notices", "it does not notice"])
    async def test_for_longer_than_its_link_lives(
        self, hosts: Hosts, own_folder: Path, worker_dead_after_s: int
    ) -> None:
        """Its requests go on elsewhere; what it draws is lost with its link; it joins again, and serves."""
        head = ("--set head.dead_after_s=3", "--set head.heartbeat_s=0.3")
        worker = (f"--set worker.dead_after_s={worker_dead_after_s}",)
        async with HostsCluster(hosts, own_folder, head=head, worker=worker) as cluster:
            asked = [body(prompt=f"Godwit {number}", max_tokens=400) for number in range(4)]
            streams = [await cluster.started(one, 5) for one in asked]
            there = on(await cluster.state(), B)
            assert len(there) == 2
            hosts.plug(B, is_in=False)
            try:
                await cluster.wait_for(lambda status: set(there) <= set(on(status, C)))
                assert [worker.name for worker in (await cluster.state()).workers] == [C]
                for stream in streams:
                    await stream.has(len(stream.answer.only.ids) + 10)
                if worker_dead_after_s > 3:
                    assert LINK_ENDED not in cluster.log_of(B)  # It draws on, for nobody.
                else:
                    await cluster.wait_for_log(B, LINK_ENDED)
            finally:
                hosts.plug(B, is_in=True)
            await cluster.wait_for(lambda status: len(status.workers) == 2)
            await cluster.wait_for_log(B, LINK_ENDED)
            for stream, one in zip(streams, asked, strict=True):
                await check_whole(stream, one)
            for request in there:
                assert await cluster.outcomes(request) == [("failover", "done")]
            assert await cluster.stale_tokens() == 0  # They never came: the link that had them is over.
            await serves_everywhere(cluster)

    async def test_for_less(self, hosts: Hosts, own_folder: Path) -> None:
        """It is back on the link that it had, with its late tokens: they are refused, and it serves on."""
        head = ("--set head.dead_after_s=40", "--set head.progress_timeout_s=3")
        worker = ("--set worker.dead_after_s=40",)
        async with HostsCluster(hosts, own_folder, head=head, worker=worker) as cluster:
            asked = [body(prompt=f"Godwit {number}", max_tokens=500) for number in range(2)]
            streams = [await cluster.started(one, 5) for one in asked]
            (there,) = on(await cluster.state(), B)
            hosts.plug(B, is_in=False)
            try:
                await cluster.wait_for(lambda status: there in on(status, C))
                for stream in streams:
                    await stream.has(len(stream.answer.only.ids) + 10)
                assert await cluster.stale_tokens() == 0
            finally:
                hosts.plug(B, is_in=True)
            await cluster.has_stale_tokens()
            for stream, one in zip(streams, asked, strict=True):
                await check_whole(stream, one)
            (record,) = await cluster.records(there)
            assert (record.method, record.outcome, record.destination) == ("failover", "done", C)
            assert "no progress for 3 s" in (record.reason or "")
            assert "worker gone" not in cluster.log_of(HEAD)
            assert LINK_ENDED not in cluster.log_of(B)
            await serves_everywhere(cluster)

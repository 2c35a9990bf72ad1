"""TLS on every link: a head and two workers with certificates, in a process that trusts their authority."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from godwit.errors import CertificateError, ConfigError, LinkError
from godwit.runtime.doors import server_tls
from godwit.runtime.link import dial

# What is trusted is read when a process starts, so this runs in one of its own.
SCRIPT = """
import asyncio, sys
import aiohttp
from godwit.config import HeadSettings, ModelSettings, Settings, WorkerSettings
from godwit.local import LocalCluster

TLS = {"tls_cert": sys.argv[1], "tls_key": sys.argv[2]}
MODEL = ModelSettings(name="fake", engine="fake", options={"decode_s": 0.01})
BODY = {"model": "fake", "prompt": "x", "max_tokens": 200}

async def main():
    settings = Settings(head=HeadSettings(port=0, **TLS), worker=WorkerSettings(**TLS), models=(MODEL,))
    async with LocalCluster(settings, 2) as cluster, aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(cluster.url + "/v1/completions", json=BODY))
        status = await cluster.until(lambda status: any(one.num_output > 5 for one in status.requests))
        moving = status.requests[0]
        print(await cluster.admin.migrate(moving.id, "w2" if moving.worker == "w1" else "w1"))
        print("status", (await asking).status)
        for name in cluster.names:
            print((cluster.logs / f"{name}.log").read_text())

asyncio.run(asyncio.wait_for(main(), 60))
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ("-subj", "/CN=godwit", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert))
    subprocess.run(["openssl", *new, *subject], check=True, capture_output=True)
    return cert, key


def run(certificate: tuple[Path, Path], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, *map(str, certificate)]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=90, check=False
    )


def test_links_to_the_head_and_between_workers(certificate: tuple[Path, Path]) -> None:
    done = run(certificate, {"SSL_CERT_FILE": str(certificate[0])})
    assert '"outcome":"done"' in done.stdout, done.stderr
    assert "status 200" in done.stdout
    assert "relaying through the head" not in done.stdout


def test_a_certificate_of_an_unknown_authority_is_refused(certificate: tuple[Path, Path]) -> None:
    done = run(certificate, {})
    assert done.returncode != 0
    assert "SSL_CERT_FILE" in done.stderr


@pytest.mark.parametrize(
    ("has_tls", "scheme", "kind", "said"),
    [
        (True, "https", CertificateError, "was refused: self-signed certificate.*SSL_CERT_FILE"),
        (True, "http", LinkError, "if it has a certificate, dial it with https://"),
        (False, "https", LinkError, "if it has no certificate, dial it with http://"),
    ],
)
def test_who_dials_is_told_what_is_wrong(
    certificate: tuple[Path, Path], has_tls: bool, scheme: str, kind: type[LinkError], said: str
) -> None:
    cert, key = map(str, certificate)

    async def scenario() -> None:
        runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
        await runner.setup()
        tls = server_tls("head", cert, key) if has_tls else None
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/link"
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                with pytest.raises(LinkError, match=said) as caught:
                    await dial(session, url, None, 5.0)
                assert type(caught.value) is kind
        finally:
            await runner.cleanup()

    asyncio.run(scenario())


def test_a_key_with_a_pass_phrase_is_refused_and_not_asked_for(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    locked = tmp_path / "locked.pem"
    lock = ("pkey", "-in", str(certificate[1]), "-aes256", "-passout", "pass:x", "-out", str(locked))
    subprocess.run(["openssl", *lock], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="without a pass phrase"):
        server_tls("head", str(certificate[0]), str(locked))

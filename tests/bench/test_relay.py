"""The relay benchmark measures what it says: every token arrives, in every mode, and has a cost."""

import asyncio

import pytest

from godwit.bench.relay import MODES, RelayReport, run_relay
from godwit.bench.relay_clients import TEXTS, Client, ClientError
from godwit.errors import ConfigError

CLIENTS = 6


def test_every_mode_gives_a_row_and_loses_no_token() -> None:
    said: list[str] = []
    # A token that is lost, doubled or out of order ends the run with a ClientError.
    report = asyncio.run(run_relay(MODES, [CLIENTS], seconds=0.2, repeat=1, progress=said.append))
    assert isinstance(report, RelayReport)
    assert [row.mode for row in report.rows] == list(MODES)
    assert len(said) == len(MODES)
    for row in report.rows:
        assert row.clients == CLIENTS
        assert row.n == 1
        assert row.cpu_us_per_token > 0
        assert row.load_cpu_us_per_token > 0
        assert 0 < row.added_p50_us <= row.added_p99_us
        assert row.tokens_per_s > 0
        assert row.tokens_per_write >= 1


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lockstep, paced, flooded"):
        asyncio.run(run_relay(["slow"], [1], seconds=0.1, repeat=1, progress=lambda _: None))


@pytest.mark.parametrize(
    ("texts", "num_sent"),
    [
        (TEXTS[:3], 4),  # lost
        ([TEXTS[0], TEXTS[1], TEXTS[1]], 3),  # doubled, another one lost
        ([TEXTS[1], TEXTS[0]], 2),  # out of order
        (TEXTS[:3], 2),  # one too many
    ],
)
def test_a_client_notices_every_wrong_token(texts: list[bytes], num_sent: int) -> None:
    with pytest.raises(ClientError, match="tokens were sent"):
        asyncio.run(_check(texts, num_sent))


def test_a_client_accepts_all_tokens_however_they_are_cut() -> None:
    assert asyncio.run(_check(TEXTS * 2, 2 * len(TEXTS))) == 2 * len(TEXTS)
    assert asyncio.run(_check([b"".join(TEXTS)], len(TEXTS))) == 1


async def _check(texts: list[bytes], num_sent: int) -> int:
    """What a client makes of an answer with these texts, one event each."""
    client = Client(0, lambda _client, _count: None)
    client.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for text in texts:
        escaped = text.replace(b'"', b'\\"').replace(b"\n", b"\\n")
        client.data_received(_chunk(b'{"choices":[{"delta":{"content":"%b"}}]}' % escaped))
    client.data_received(_chunk(b'{"choices":[{"delta":{},"finish_reason":"length"}]}') + _chunk(b"[DONE]"))
    client.data_received(b"0\r\n\r\n")
    await client.ended
    return client.check(num_sent)


def _chunk(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)

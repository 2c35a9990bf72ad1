"""What operators may not send."""

import asyncio

import pytest

from godwit.config import HeadSettings
from tests.admin.scripted import Head
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.anyio


async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async with Head(HeadSettings(port=0, body_timeout_s=0.01)) as head, asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(head.url.rpartition(":")[2]))
        writer.write(b"POST /admin/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_a_body_that_is_not_what_it_says_is_refused(head: Head) -> None:
    said = {"Content-Encoding": "gzip"}
    async with head.session.post("/admin/drain", data=b"no gzip", headers=said) as response:
        assert response.status == 400
        assert "Content-Encoding" in (await response.json())["error"]["message"]

"""What is not an answer: models, errors and their status, keys, limits, health, metrics."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from godwit.errors import (
    ContextTooLongError,
    EngineError,
    GodwitError,
    ModelNotFoundError,
    OverloadedError,
    UnavailableError,
)
from godwit.router.settings import RouterSettings
from tests.router.scripted import PATIENCE_S, Served, run, served

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


async def post(at: Served, body: object, path: str = "/v1/chat/completions", **options: Any) -> "Reply":
    return await send(at, "POST", path, json=body, **options)


async def send(at: Served, method: str, path: str, **options: Any) -> "Reply":
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, at.url + path, **options) as response,
    ):
        text = await response.text()
        is_json = response.content_type == "application/json"
        return Reply(response, text, await response.json() if is_json else {})


class Reply:
    """A response that was read to its end."""

    def __init__(self, response: aiohttp.ClientResponse, text: str, json: dict[str, Any]) -> None:
        self.status, self.headers, self.text, self.json = response.status, response.headers, text, json

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which has exactly OpenAI's fields."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def test_models() -> None:
    async def main() -> None:
        async with served() as at, at.client() as client:
            models = [model async for model in client.models.list()]
            assert [(m.id, m.object, m.owned_by) for m in models] == [("fake", "model", "godwit")]
            assert (await client.models.retrieve("fake")).id == "fake"
            with pytest.raises(openai.NotFoundError) as caught:
                await client.models.retrieve("org/none")
            assert caught.value.code == "model_not_found"
            assert "fake" in caught.value.message

    run(main())


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (ModelNotFoundError("no", param="model"), 404),
        (OverloadedError("no", retry_after_s=7), 429),
        (UnavailableError("no"), 503),
    ],
)
def test_a_refused_start_has_its_status(refusal: GodwitError, status: int, is_streamed: bool) -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.refusal = refusal
            reply = await post(at, {**CHAT, "stream": is_streamed})
            assert reply.status == status
            assert reply.error["code"] == refusal.code
            assert reply.error["type"] == refusal.kind
            assert reply.error["param"] == refusal.param
            assert reply.headers["x-request-id"] == "r0"
            wait = {404: None, 429: "7", 503: "1"}[status]
            assert reply.headers.get("Retry-After") == wait

    run(main())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_where_one_choice_is_refused_those_before_it_are_cancelled(is_streamed: bool) -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.refusal = OverloadedError("full")
            at.generations.refuses_from = 2
            reply = await post(at, {**CHAT, "n": 3, "stream": is_streamed})
            assert reply.status == 429
            assert {"r0-0", "r0-1"} <= set(at.generations.cancelled)

    run(main())


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_failure_before_the_first_byte_has_its_status(is_streamed: bool, is_accepted: bool) -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.is_manual = True
            asking = asyncio.create_task(post(at, {**CHAT, "n": 2, "stream": is_streamed}))
            await at.generations.until(lambda: len(at.generations.started) == 2)
            sink = at.generations.started[0].sink
            if is_accepted:
                sink.accepted([1])
            sink.failed(ContextTooLongError("too long", param="messages"))
            reply = await asking
            assert reply.status == 400
            assert reply.error["code"] == "context_length_exceeded"
            assert reply.error["param"] == "messages"
            assert at.generations.cancelled == ["r0-1"]

    run(main())


def test_a_failure_after_the_first_byte_is_an_error_event_then_done() -> None:
    async def main() -> None:
        async with served() as at, aiohttp.ClientSession() as session:
            at.generations.is_manual = True
            accepting = asyncio.create_task(at.generations.accept_all(2))
            body = {**CHAT, "stream": True, "n": 2}
            async with session.post(f"{at.url}/v1/chat/completions", json=body) as response:
                await accepting
                sink = at.generations.started[0].sink
                sink.tokens(0, [1], [b"Hel"], [])
                sink.flush()
                sink.failed(UnavailableError("no server could take it"))
                text = await response.text()
            assert response.status == 200
            assert text.split("\n\n")[-3:] == [
                'data: {"error":{"message":"no server could take it","type":"server_error",'
                '"param":null,"code":"unavailable"}}',
                "data: [DONE]",
                "",
            ]
            assert '"content":"Hel"' in text
            assert '"finish_reason":"' not in text
            assert at.generations.cancelled == ["r0-1"]
            assert "godwit_stream_errors_total 1.0" in (await send(at, "GET", "/metrics")).text

    run(main())


def test_the_official_client_raises_the_error_of_a_stream() -> None:
    async def main() -> None:
        async with served() as at, at.client() as client:
            at.generations.is_manual = True
            accepting = asyncio.create_task(at.generations.accept_all(1))
            stream = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            await accepting
            at.generations.started[0].sink.failed(EngineError("broken"))
            with pytest.raises(openai.APIError, match="broken"):
                [chunk async for chunk in stream]

    run(main())


def test_bad_bodies_get_openais_error_shape() -> None:
    async def main() -> None:
        async with served() as at:
            reply = await post(at, {**CHAT, "tools": [{"type": "function"}]})
            assert reply.status == 400
            assert reply.error == {
                "message": "The parameter `tools` is not supported: leave it out.",
                "type": "invalid_request_error",
                "param": "tools",
                "code": "invalid_request",
            }
            reply = await send(at, "POST", "/v1/completions", data=b"{nonsense")
            assert reply.status == 400
            assert "not valid JSON" in reply.error["message"]
            reply = await send(
                at, "POST", "/v1/completions", data=b"no gzip", headers={"Content-Encoding": "gzip"}
            )
            assert reply.status == 400
            assert "Content-Encoding" in reply.error["message"]
            assert at.generations.started == []

    run(main())


def test_unknown_routes_and_methods_get_openais_error_shape() -> None:
    async def main() -> None:
        async with served() as at:
            reply = await send(at, "GET", "/v1/nothing")
            assert reply.status == 404
            assert reply.error["type"] == "invalid_request_error"
            reply = await send(at, "GET", "/v1/chat/completions")
            assert reply.status == 405
            assert reply.headers["Allow"] == "POST"
            assert "POST" in reply.error["message"]

    run(main())


def test_keys() -> None:
    async def main() -> None:
        async with served(RouterSettings(api_keys=("first", "sécond"))) as at:
            for key, status in [(None, 401), ("wrong", 401), ("firs", 401), ("first", 200), ("sécond", 200)]:
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                reply = await post(at, CHAT, headers=headers)
                assert reply.status == status
                if status == 401:
                    assert reply.error["code"] == "invalid_api_key"
            assert (
                await send(at, "GET", "/v1/models", headers={"Authorization": "Basic first"})
            ).status == 401
            assert (await send(at, "GET", "/%761/models")).status == 401
            assert (await send(at, "GET", "/health")).status == 200
            async with at.client("wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()

    run(main())


def test_settings_do_not_print_keys() -> None:
    assert "secret" not in repr(RouterSettings(api_keys=("secret",)))


def test_a_large_body_is_refused_whether_or_not_it_says_its_size() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async def main() -> None:
        async with served(RouterSettings(max_body_bytes=1000, shutdown_timeout_s=0.1)) as at:
            for data in (b" " * 2000, chunks()):
                reply = await send(at, "POST", "/v1/completions", data=data)
                assert reply.status == 413
                assert reply.error["code"] == "payload_too_large"

    run(main())


def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async def main() -> None:
        async with served(RouterSettings(body_timeout_s=0.01, shutdown_timeout_s=0.1)) as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert b" 408 " in await reader.readline()
            writer.close()

    run(main())


def test_a_stream_of_http_1_0_ends_with_its_connection() -> None:
    body = b'{"model": "fake", "prompt": "x", "stream": true}'
    head = b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"

    async def main() -> None:
        async with served(RouterSettings(idle_timeout_s=1000)) as at, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            writer.write(head % len(body) + body)
            assert (await reader.read()).endswith(b"data: [DONE]\n\n")
            writer.close()

    run(main())


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def main() -> None:
        async with served(RouterSettings(idle_timeout_s=0.01, shutdown_timeout_s=0.1)) as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost")
            assert await reader.read() == b""
            writer.close()

    run(main())


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_health(is_ready: bool, status: int) -> None:
    async def main() -> None:
        async with served(is_ready=is_ready) as at:
            reply = await send(at, "GET", "/health")
            assert reply.status == status
            assert reply.json == {"status": "ok" if is_ready else "starting"}

    run(main())


def test_metrics() -> None:
    async def main() -> None:
        async with served() as at:
            await post(at, {**CHAT, "stream": True})
            await post(at, {**CHAT, "foo": 1})
            at.metrics.watch(
                num_queued=lambda: 3,
                num_running=lambda: 4,
                num_stale_tokens=lambda: 5,
                bias_s={"ready": lambda: -0.5},
            )
            at.metrics.prediction_error("kv", "transfer", 0.02)
            at.metrics.prediction_error("kv", "ready", 0.3)
            at.metrics.migration("recompute", "done")
            at.metrics.failover()
            at.metrics.pause(0.02)
            at.metrics.rounds(3)
            text = (await send(at, "GET", "/metrics")).text
            for line in [
                'godwit_requests_total{path="/v1/chat/completions",status="200"} 1.0',
                'godwit_requests_total{path="/v1/chat/completions",status="400"} 1.0',
                "godwit_ttft_seconds_count 1.0",
                "godwit_itl_seconds_count 2.0",
                "godwit_requests_queued 3.0",
                "godwit_requests_running 4.0",
                "godwit_stale_tokens_total 5.0",
                'godwit_migrations_total{method="recompute",outcome="done"} 1.0',
                "godwit_failovers_total 1.0",
                "godwit_migration_pause_seconds_count 1.0",
                'godwit_migration_rounds_bucket{le="3.0"} 1.0',
                'godwit_migration_prediction_error_seconds_count{method="kv",phase="transfer"} 1.0',
                'godwit_migration_prediction_error_seconds_sum{method="kv",phase="ready"} 0.3',
                'godwit_migration_prediction_bias_seconds{phase="ready"} -0.5',
            ]:
                assert line in text.splitlines()

    run(main())

"""The aiohttp application that speaks the OpenAI API."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import HttpVersion11, web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from godwit.errors import ModelNotFoundError
from godwit.router.body import read_body
from godwit.router.collect import Collection
from godwit.router.exchange import Exchange
from godwit.router.generation import Generations
from godwit.router.metrics import RouterMetrics
from godwit.router.middleware import ARRIVED_S, REQUEST_ID, add_request_id, make_middleware
from godwit.router.openai import Plan, plan_chat, plan_completion
from godwit.router.settings import RouterSettings
from godwit.router.shapes import APPROXIMATE, encode_json, make_shape
from godwit.router.sink import ChoiceSink
from godwit.router.stream import EventStream
from godwit.router.text import TextStream

STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
CONTINUATION_HEADER = "x-godwit-continuation"

PlanMaker = Callable[[bytes, str, Callable[[], int], int], Plan]


def make_app(
    generations: Generations,
    *,
    settings: RouterSettings,
    metrics: RouterMetrics,
    new_id: Callable[[], str],
    new_seed: Callable[[], int],
    now: Callable[[], float],
    is_ready: Callable[[], bool],
    wall_now: Callable[[], float] = time.time,
) -> web.Application:
    """The application; `now` never goes back, `wall_now` is seconds since 1970, ids and seeds are drawn anew.

    Run it with `make_runner`: without handler cancellation a client that leaves is noticed too late.
    """
    app = web.Application(
        middlewares=[make_middleware(settings.api_keys, metrics, new_id, now)],
        client_max_size=settings.max_body_bytes,
    )
    app.on_response_prepare.append(add_request_id)
    api = OpenAiApi(
        generations, settings=settings, metrics=metrics, new_seed=new_seed, now=now, wall_now=wall_now
    )
    app.router.add_get("/v1/models", api.list_models)
    app.router.add_get("/v1/models/{model:.+}", api.get_model)
    app.router.add_post("/v1/chat/completions", api.chat)
    app.router.add_post("/v1/completions", api.complete)

    async def health(_request: web.Request) -> web.Response:
        if is_ready():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "starting"}, status=503, headers={"Retry-After": "1"})

    async def prometheus(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app.router.add_get("/health", health)
    app.router.add_get("/metrics", prometheus)
    return app


def make_runner(app: web.Application, settings: RouterSettings) -> web.AppRunner:
    """A runner with the time-outs of `settings`, which cancels the handler of a client that leaves."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=settings.idle_timeout_s,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        shutdown_timeout=settings.shutdown_timeout_s,
    )


class OpenAiApi:
    """The handlers under /v1/."""

    def __init__(
        self,
        generations: Generations,
        *,
        settings: RouterSettings,
        metrics: RouterMetrics,
        new_seed: Callable[[], int],
        now: Callable[[], float],
        wall_now: Callable[[], float],
    ) -> None:
        self._generations = generations
        self._settings = settings
        self._metrics = metrics
        self._new_seed = new_seed
        self._now = now
        self._wall_now = wall_now
        self._started = int(wall_now())

    async def list_models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        models = [self._model(info.name) for info in self._generations.models()]
        return _json({"object": "list", "data": models})

    async def get_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}."""
        name = request.match_info["model"]
        names = [info.name for info in self._generations.models()]
        if name not in names:
            raise ModelNotFoundError(
                f"There is no model `{name}`; there are: {', '.join(names) or 'none yet'}.", param="model"
            )
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "godwit"}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._serve(request, plan_chat)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._serve(request, plan_completion)

    async def _serve(self, request: web.Request, make_plan: PlanMaker) -> web.StreamResponse:
        base = request[REQUEST_ID]
        raw = await self._read(request)
        plan = make_plan(raw, base, self._new_seed, self._settings.max_choices)
        shape = make_shape(plan, base, int(self._wall_now()))
        loop = asyncio.get_running_loop()
        if not plan.is_streamed:
            collection = Collection(plan, shape, self._generations.cancel, loop)
            try:
                self._start(plan, collection, request[ARRIVED_S])
                body = await collection.body()
                headers = {CONTINUATION_HEADER: APPROXIMATE} if collection.broken else {}
                return web.Response(body=body, content_type="application/json", headers=headers)
            finally:
                collection.close()
        stream = EventStream(
            plan,
            shape,
            self._generations.cancel,
            loop,
            max_unread_bytes=self._settings.max_unread_bytes,
            on_slow_reader=self._metrics.slow_reader,
        )
        try:
            self._start(plan, stream, request[ARRIVED_S])
            return await self._send(request, stream)
        finally:
            stream.close()

    async def _read(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._settings.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._settings.max_body_bytes, request.content_length or 0)
        return await read_body(request, self._settings.body_timeout_s)

    def _start(self, plan: Plan, exchange: Exchange, arrived_s: float) -> None:
        """Queue all choices; those queued before one is refused are cancelled by the exchange's `close`."""
        for choice in plan.choices:
            sink = ChoiceSink(
                choice.index,
                exchange,
                TextStream(plan.stops, choice.sampling.min_tokens),
                has_tokens=plan.has_logprobs or plan.has_token_ids,
                ttft=self._metrics.ttft,
                itl=self._metrics.itl,
                now=self._now,
                arrived_s=arrived_s,
            )
            self._generations.start(
                choice.request,
                plan.model,
                choice.prompt,
                choice.sampling,
                sink,
                plan.expected_tokens,
                has_seed=plan.has_seed,
            )

    async def _send(self, request: web.Request, stream: EventStream) -> web.StreamResponse:
        """Headers once a choice is accepted, events as they come, then the end of the body."""
        await stream.accepted()
        response = web.StreamResponse(headers=STREAM_HEADERS)
        is_chunked = request.version >= HttpVersion11
        if not is_chunked:
            # Then only the connection's end says that the answer is over.
            response.force_close()
        await response.prepare(request)
        if request.transport is None:
            raise ConnectionResetError("the client left")
        stream.open(request.transport, is_chunked=is_chunked)
        await stream.ended()
        if stream.error is not None:
            self._metrics.stream_error()
        try:
            # Waits until the client has read nearly all, so it needs a deadline.
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await response.write_eof()
        except TimeoutError:
            stream.cut()
        return response


def _json(value: Any) -> web.Response:
    return web.Response(body=encode_json(value), content_type="application/json")

"""What every HTTP request goes through: an id, the key check, errors in OpenAI's shape, a log line."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from godwit.errors import GodwitError, InvariantBrokenError, UnauthorizedError
from godwit.router.metrics import RouterMetrics
from godwit.router.shapes import error_body
from godwit.runtime.doors import shows_key

REQUEST_ID = web.RequestKey("request_id", str)
ARRIVED_S = web.RequestKey("arrived_s", float)
CLIENT_LEFT = 499
DEFAULT_RETRY_AFTER_S = 1

_log = structlog.get_logger("godwit.router")


def make_middleware(
    api_keys: Sequence[str],
    metrics: RouterMetrics,
    new_id: Callable[[], str],
    now: Callable[[], float],
) -> Middleware:
    """The one middleware; paths under /v1/ need one of `api_keys` where there are any."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = new_id()
        request[ARRIVED_S] = now()
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "unknown"
        status = 500
        try:
            if api_keys and path.startswith("/v1/"):
                check_key(request.headers, api_keys)
            response = await handler(request)
            status = response.status
        except GodwitError as e:
            response = error_response(e)
            status = response.status
        except web.HTTPException as e:
            response = _from_aiohttp(e, request)
            status = response.status
        except InvariantBrokenError as e:
            # aiohttp would answer 500 and go on: whoever runs the loop must hear of it (`processes.run`).
            asyncio.get_running_loop().call_exception_handler({"message": "invariant broken", "exception": e})
            raise
        except (asyncio.CancelledError, ConnectionError):
            status = CLIENT_LEFT
            raise
        finally:
            metrics.request(path, status)
            if path.startswith("/v1/"):
                _log.info(
                    "request",
                    request=request[REQUEST_ID],
                    path=path,
                    status=status,
                    seconds=round(now() - request[ARRIVED_S], 6),
                )
        return response

    return middleware


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: each response says the id by which the request can be found and moved."""
    if REQUEST_ID in request:
        response.headers["x-request-id"] = request[REQUEST_ID]


def check_key(headers: Mapping[str, str], keys: Sequence[str]) -> None:
    """UnauthorizedError unless the headers show one of `keys`."""
    if not shows_key(headers, keys):
        what = "wrong" if headers.get("Authorization") else "missing"
        raise UnauthorizedError(
            f"The API key is {what}: send the header `Authorization: Bearer KEY` with a key of this server."
        )


def error_response(error: GodwitError) -> web.Response:
    """The error in OpenAI's shape; 429 and 503 say when to try again."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s or DEFAULT_RETRY_AFTER_S)
    return web.Response(
        status=error.status, body=error_body(error), content_type="application/json", headers=headers
    )


def _from_aiohttp(error: web.HTTPException, request: web.Request) -> web.StreamResponse:
    """What aiohttp itself says (no such route, wrong method, too large, too slow), in OpenAI's shape."""
    if error.status < 400:
        return error
    messages = {
        404: f"There is no {request.method} {request.path} here; see /v1/models for what can be asked.",
        405: f"{request.path} does not take {request.method}; it takes {error.headers.get('Allow', '')}.",
        408: "The body did not arrive in time: send it faster.",
        413: "The body is too large: send a shorter prompt.",
    }
    codes = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "payload_too_large"}
    shaped = GodwitError(messages.get(error.status, error.reason))
    body = error_body(shaped, kind="invalid_request_error", code=codes.get(error.status, "invalid_request"))
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)

"""Reading a request's body, which may be late, too large, or not what its headers say."""

import asyncio

from aiohttp import web

from godwit.errors import BadRequestError


async def read_body(request: web.Request, timeout_s: float) -> bytes:
    """All of it; BadRequestError, or aiohttp's own exception for 408 and 413."""
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except web.RequestPayloadError:
        raise BadRequestError(
            "The body is not what its headers say: check Content-Encoding and Transfer-Encoding."
        ) from None

"""Who may use the admin API, and how its bodies are read and written."""

from typing import TypeVar

import msgspec
from aiohttp import web

from godwit.config import is_loopback
from godwit.errors import BadRequestError, UnauthorizedError
from godwit.router.body import read_body
from godwit.runtime.doors import is_from_web_page, shows_key

T = TypeVar("T")


class Door:
    """Lets in who shows the admin key; without one, programs of this machine."""

    def __init__(self, key: str | None, body_timeout_s: float) -> None:
        self._key = key
        self._body_timeout_s = body_timeout_s

    def check(self, request: web.Request) -> None:
        """UnauthorizedError for everybody else."""
        if self._key is None:
            if not is_loopback(request.remote or "") or is_from_web_page(request.headers):
                raise UnauthorizedError("the admin API is for this machine only; set security.admin_key")
        elif not shows_key(request.headers, (self._key,)):
            raise UnauthorizedError("wrong or missing admin key: send security.admin_key as a Bearer token")

    async def read(self, request: web.Request, kind: type[T]) -> T:
        """A request's body; BadRequestError says what is wrong with it."""
        body = await read_body(request, self._body_timeout_s)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise BadRequestError(f"not a valid body: {error}") from error


def answer(value: object, status: int = 200) -> web.Response:
    """A response with `value` in JSON."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")

"""The exception tree. Each class that can reach a client has its HTTP status and OpenAI error code."""

from typing import ClassVar


class GodwitError(Exception):
    """Base of all expected failures; the message tells the user what to do next."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class BadRequestError(GodwitError):
    """The client's request cannot be served as it stands; `param` names the field."""

    status, code, kind = 400, "invalid_request", "invalid_request_error"


class ContextTooLongError(BadRequestError):
    """Prompt and requested output do not fit in the model's context."""

    code = "context_length_exceeded"


class UnauthorizedError(GodwitError):
    """A key or token is missing or wrong."""

    status, code, kind = 401, "invalid_api_key", "invalid_request_error"


class NotFoundError(GodwitError):
    """No such model, request, worker or route."""

    status, code, kind = 404, "not_found", "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    """No worker has the model; the message lists those that exist."""

    code = "model_not_found"


class ConflictError(GodwitError):
    """The thing asked for clashes with what is going on, such as a move of a request that is moving."""

    status, code, kind = 409, "conflict", "invalid_request_error"


class OverloadedError(GodwitError):
    """The queue is full; try again after `retry_after_s`."""

    status, code, kind = 429, "overloaded", "rate_limit_error"


class UnavailableError(GodwitError):
    """No server could take the request in time; try again after `retry_after_s`."""

    status, code, kind = 503, "unavailable", "server_error"


class EngineError(GodwitError):
    """The engine failed on this request; the message says how."""

    code = "engine_error"


class NoFreeSlotError(GodwitError):
    """The instance has no free slot or no KV space for one more request."""

    status, code = 503, "no_free_slot"


class ModelLoadError(GodwitError):
    """A checkpoint could not be loaded; the message names the file and what to do."""

    status, code = 503, "model_load_failed"


class ConfigError(GodwitError):
    """A setting is wrong; the message names its key and the allowed values."""

    code = "bad_config"


class LinkError(GodwitError):
    """A link was refused, broke, or missed its deadline."""

    status, code = 503, "link_lost"


class CertificateError(LinkError):
    """The other end's certificate is not one that this machine trusts for the address that was dialled."""

    code = "certificate_refused"


class ProtocolError(GodwitError):
    """A peer sent something that is not in the protocol."""

    code = "protocol_error"


class InvariantBrokenError(Exception):
    """Something that must never happen did; never caught, since going on could corrupt a stream."""


_BY_CODE: dict[str, type[GodwitError]] = {}


def _register(cls: type[GodwitError]) -> None:
    _BY_CODE[cls.code] = cls
    for sub in cls.__subclasses__():
        _register(sub)


_register(GodwitError)


def from_code(code: str, message: str) -> GodwitError:
    """The exception that travelled as `code` and `message`; an unknown code becomes GodwitError."""
    return _BY_CODE.get(code, GodwitError)(message)

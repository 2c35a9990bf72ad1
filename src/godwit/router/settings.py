"""The limits and keys of the HTTP side."""

from msgspec import Struct


class RouterSettings(Struct, frozen=True):
    """No `api_keys` means that anyone may ask; `max_choices` bounds prompts times n of one HTTP request."""

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 2**20
    max_choices: int = 128
    max_unread_bytes: int = 2**20
    max_header_bytes: int = 16 * 2**10
    body_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    shutdown_timeout_s: float = 5.0

    def __repr__(self) -> str:
        # Keys must not reach a log, not even through a traceback that prints its arguments.
        return f"RouterSettings({len(self.api_keys)} API keys)"

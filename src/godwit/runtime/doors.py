"""Who may come in: keys compared in constant time, and no web pages."""

import hmac
from collections.abc import Iterable, Mapping


def shows_key(headers: Mapping[str, str], keys: Iterable[str]) -> bool:
    """Whether the request's Bearer token is one of `keys`; takes equally long for each."""
    scheme, _, shown = headers.get("Authorization", "").partition(" ")
    # A header may hold any bytes: those that are no UTF-8 must not make this fail.
    shown_bytes = shown.strip().encode("utf-8", "surrogateescape")
    matches = [hmac.compare_digest(shown_bytes, key.encode()) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def is_from_web_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent this for a page: any site could then reach what listens on loopback only."""
    return "Origin" in headers

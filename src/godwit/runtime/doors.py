"""Who may come in, and how: keys compared in constant time, no web pages, TLS with a certificate."""

import hmac
import ssl
from collections.abc import Iterable, Mapping

from godwit.errors import ConfigError


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


def server_tls(section: str, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS with the certificate of a section of the settings, None where it has none; ConfigError."""
    if cert is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without the callback OpenSSL would ask at the terminal, and the whole process would wait.
        tls.load_cert_chain(cert, key, _no_pass_phrase)
    except OSError as error:
        raise ConfigError(f"{section}.tls_cert, {section}.tls_key: no PEM files: {error}") from error
    return tls


def _no_pass_phrase() -> str:
    raise ConfigError("tls_key: is encrypted; give a key without a pass phrase (`openssl pkey` writes one)")

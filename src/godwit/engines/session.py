"""HTTP with an engine's server: as many connections as it has requests, and a deadline on silence."""

import aiohttp

ANSWER_S = 600.0
"""A server that says nothing for so long has lost the request; an answer that goes on may take longer."""
CONNECT_S = 10.0
_READ_BYTES = 1 << 20


def open_session() -> aiohttp.ClientSession:
    """A session without the usual limit of connections, which would have requests wait for each other."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S),
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=_READ_BYTES,
    )

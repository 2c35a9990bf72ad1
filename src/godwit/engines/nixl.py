"""Live KV between vLLM servers through their NixlConnector, by the parameters that completions take and give.

The source is asked for one token with `do_remote_decode`: it finds the KV of all full blocks in its prefix
cache, while the request itself decodes on, and answers with their ids. The destination, asked for one token
with these, pulls the blocks that it does not have, and has them in its own prefix cache then.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from godwit.engines.leases import Leases
from godwit.engines.server import Seat
from godwit.errors import EngineError
from godwit.types import TokenId

Complete = Callable[[Seat, dict[str, Any]], Awaitable[dict[str, Any]]]

LEASE_S = 60
"""For so long a source keeps KV that nobody has come for; an option of the connector."""

_OFFER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class NixlKv:
    """Implements `server.KvShipping`; `complete` asks the vLLM server for a completion."""

    def __init__(self, complete: Complete, layout: str, bytes_per_token: int) -> None:
        self.layout = layout
        self.bytes_per_token = bytes_per_token
        self._complete = complete
        self._leases = Leases()

    async def export_kv(self, seat: Seat, ids: Sequence[TokenId]) -> bytearray:
        """A lease on the KV of `ids`."""
        params = (await self._ask(seat, ids, _OFFER)).get("kv_transfer_params")
        if not params:
            raise EngineError("vLLM offers no KV: start it with a NixlConnector (option nixl)")
        return self._leases.issue(ids, params, time.time())

    async def import_kv(self, seat: Seat, ids: Sequence[TokenId], data: bytearray) -> None:
        """Pull the KV of `ids` by another server's lease; EngineError where it must not be used."""
        await self._ask(seat, ids, self._leases.redeem(ids, data, time.time()))

    async def _ask(self, seat: Seat, ids: Sequence[TokenId], params: dict[str, Any]) -> dict[str, Any]:
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 0, "kv_transfer_params": params}
        return await self._complete(seat, body)

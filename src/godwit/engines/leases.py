"""Leases on KV that another server pulls: single use, short, and for the tokens that they were issued for.

A connector's own parameters are believed blindly by whoever gets them: old ones, or ones for another prompt,
can fill the prefix cache with KV that is wrong, and then every later answer from it is wrong too.
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from godwit.errors import EngineError
from godwit.types import TokenId

VALID_S = 20.0
"""Less than the time after which a source frees KV that nobody has come for (`nixl.LEASE_S`)."""
MAX_REDEEMED = 10_000


class Lease(Struct, frozen=True):
    """`params` are the connector's, for the KV of `num_tokens` ids whose hash is `ids`, at one engine's life.

    `issued_s` is wall-clock time.
    """

    lease: str
    ids: str
    num_tokens: int
    issued_s: float
    engine: str
    params: dict[str, Any]


class Leases:
    """Issues leases at a source and redeems them at a destination."""

    def __init__(self) -> None:
        self._redeemed: dict[str, None] = {}

    def issue(self, ids: Sequence[TokenId], params: dict[str, Any], now_s: float) -> bytearray:
        """A lease on the KV of `ids`, as bytes."""
        engine = str(params.get("remote_engine_id"))
        lease = Lease(uuid.uuid4().hex, _hash(ids), len(ids), now_s, engine, params)
        return bytearray(msgspec.json.encode(lease))

    def redeem(self, ids: Sequence[TokenId], data: bytearray, now_s: float) -> dict[str, Any]:
        """The connector's parameters; EngineError where they must not be used for `ids`, or not any more."""
        try:
            lease = msgspec.json.decode(data, type=Lease)
        except msgspec.MsgspecError as error:
            raise EngineError(f"this is no lease on KV: {error}") from error
        if (lease.num_tokens, lease.ids) != (len(ids), _hash(ids)):
            raise EngineError("the lease on KV is for other tokens")
        if lease.engine != lease.params.get("remote_engine_id"):
            raise EngineError("the lease on KV is of another life of its engine")
        if not -VALID_S < now_s - lease.issued_s < VALID_S:
            raise EngineError(
                f"the lease on KV is {now_s - lease.issued_s:.0f} s old; {VALID_S:.0f} are valid"
            )
        if lease.lease in self._redeemed:
            raise EngineError("the lease on KV has been used")
        self._redeemed[lease.lease] = None
        if len(self._redeemed) > MAX_REDEEMED:
            # Those that have gone are too old to be redeemed.
            del self._redeemed[next(iter(self._redeemed))]
        return lease.params


def _hash(ids: Sequence[TokenId]) -> str:
    return hashlib.blake2b(",".join(map(str, ids)).encode(), digest_size=16).hexdigest()

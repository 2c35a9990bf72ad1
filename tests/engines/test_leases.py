"""Leases on KV: for their tokens, once, while they are fresh."""

import msgspec
import pytest
from msgspec.structs import replace

from godwit.engines.leases import VALID_S, Lease, Leases
from godwit.errors import EngineError

IDS = (1, 2, 3)
PARAMS = {"remote_engine_id": "engine-1", "remote_block_ids": [[4]]}
NOW_S = 1e9


def packed(lease: Lease) -> bytearray:
    return bytearray(msgspec.json.encode(lease))


@pytest.fixture
def lease() -> Lease:
    return msgspec.json.decode(Leases().issue(IDS, PARAMS, NOW_S), type=Lease)


def test_it_gives_the_parameters_once(lease: Lease) -> None:
    leases = Leases()
    assert leases.redeem(IDS, packed(lease), NOW_S + 1) == PARAMS
    with pytest.raises(EngineError, match="has been used"):
        leases.redeem(IDS, packed(lease), NOW_S + 1)


@pytest.mark.parametrize(
    ("ids", "after_s", "changed", "why"),
    [
        ((1, 2, 4), 0.0, {}, "other tokens"),
        ((1, 2), 0.0, {}, "other tokens"),
        ((*IDS, 4), 0.0, {}, "other tokens"),
        (IDS, VALID_S + 1, {}, "21 s old"),
        (IDS, -VALID_S - 1, {}, "s old"),
        (IDS, 0.0, {"engine": "engine-0"}, "another life"),
    ],
)
def test_it_is_refused(
    lease: Lease, ids: tuple[int, ...], after_s: float, changed: dict[str, str], why: str
) -> None:
    leases = Leases()
    with pytest.raises(EngineError, match=why):
        leases.redeem(ids, packed(replace(lease, **changed)), NOW_S + after_s)
    assert leases.redeem(IDS, packed(lease), NOW_S) == PARAMS, "a refusal does not use it up"


def test_what_is_no_lease_is_refused() -> None:
    with pytest.raises(EngineError, match="no lease"):
        Leases().redeem(IDS, bytearray(b"{}"), NOW_S)

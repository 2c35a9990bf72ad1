"""What a move that is over teaches the cost model."""

from godwit.costs.choice import Observation
from godwit.protocol.entry import MoveRecord


def observation(record: MoveRecord, *, both_loaded: bool = False) -> Observation | None:
    """What the record teaches; None where the move failed, was not planned, or did not go as planned."""
    was_as_planned = record.outcome == "done" and record.method != "failover" and record.kv_problem is None
    if not was_as_planned or record.destination is None or record.actual is None:
        return None
    return Observation(
        record.model,
        record.source,
        record.destination,
        record.actual,
        record.predicted,
        record.computed_tokens,
        record.kv_tokens,
        record.kv_bytes,
        both_loaded,
    )

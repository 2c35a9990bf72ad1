"""How a request is to be moved, once it is known where."""

from collections.abc import Mapping

from godwit.costs.choice import MoveCosts
from godwit.costs.crossover import Method
from godwit.costs.shipping import kv_plan
from godwit.protocol.entry import Entry, MovePlan
from godwit.scheduling.member import Member, carries_of
from godwit.types import Phases, WorkerId


def move_plan(
    costs: MoveCosts,
    method: str,
    entry: Entry,
    members: Mapping[WorkerId, Member],
    source: WorkerId,
    destination: WorkerId,
    *,
    both_loaded: bool,
) -> MovePlan:
    """What the costs say of a move by `method`; `both_loaded`: either end serves others too.

    KV goes only where both engines can and the destination can be dialled, for the head carries none.
    """
    num_tokens = entry.journal.num_tokens
    carries = carries_of(members, destination, entry.model)
    can_ship = carries.kv and carries_of(members, source, entry.model).kv
    if not (can_ship and members[destination].hello.peer_url is not None and entry.journal.output_ids):
        method = Method.TOKENS
    chosen = costs.choose(method, entry.model, num_tokens, source, destination, both_loaded=both_loaded)
    kv = kv_plan(chosen, num_tokens)
    predicted = Phases(chosen.shipping_s or None, chosen.computing_s or None, chosen.seconds)
    return MovePlan(chosen.method if kv is not None else Method.TOKENS, kv, predicted, carries)

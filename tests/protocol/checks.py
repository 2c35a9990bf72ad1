"""What must hold in the world at every moment, and what once everything has come to rest."""

from godwit.errors import GodwitError
from tests.protocol.world import HEAD, MODEL, World

MAX_ROUNDS = 400
ROUND_S = 1.0


def check_always(world: World) -> None:
    """One owner; a candidate only while its move is on; the books of engines and journals in range."""
    for entry in world.control.requests:
        journal, moving = entry.journal, entry.moving
        client = world.clients[entry.request]
        assert client.outcome is None and client.ids == journal.output_ids
        if journal.candidate is not None:
            assert moving is not None and moving.destination == journal.candidate
            assert journal.candidate != journal.owner and journal.candidate_epoch > journal.epoch
        elif moving is not None:
            assert moving.is_adopted and journal.owner == moving.destination
    for client in world.clients.values():
        assert client.outcome is not None or world.control.requests.get(client.request) is not None
    for node in world.nodes.values():
        for engine in node.instances.engines.values():
            assert 0 <= engine.free_slots <= engine.slots


def is_at_rest(world: World) -> bool:
    """Whether nothing can happen any more but by a new wish or fault."""
    nodes = [node for node in world.nodes.values() if node.is_up]
    return (
        not len(world.control.requests)
        and not any(world.queues.values())
        and not any(node.requests.num_moves or node.requests.num_running for node in nodes)
        and not any(node.has_reports or node.has_commands or node.instances.loading for node in nodes)
    )


def settle(world: World) -> None:
    """End all partitions, bring lost workers back, and let things run until they rest."""
    world.thaw()
    for name, node in world.nodes.items():
        if node.is_up and not (node.is_linked and name in world.control.members):
            world.link(name)
    for _ in range(MAX_ROUNDS):
        world.run()
        check_always(world)
        if is_at_rest(world):
            return
        for name, node in world.nodes.items():
            if node.is_up and not node.is_linked:
                world.link(name)
        world.tick(ROUND_S)
    raise AssertionError(f"no rest: {_what_is_left(world)}")


def check_at_rest(world: World) -> None:
    """Every request ended well or with an error; every slot is free, in the engines and in the books."""
    for client in world.clients.values():
        assert client.outcome in ("finished", "failed", "cancelled")
        assert client.outcome != "failed" or isinstance(client.error, GodwitError)
    for node in world.nodes.values():
        if node.is_up:
            for engine in node.instances.engines.values():
                assert engine.free_slots == engine.slots and not engine.generating
    for worker in world.control.view().workers.values():
        assert worker.num_used == 0, f"the scheduler keeps slots of {worker.id}"
    for name, member in world.control.members.items():
        assert not (member.is_draining and world.nodes[name].is_up), f"{name} is drained but has not left"


def _what_is_left(world: World) -> str:
    entries = [
        (e.request, e.state, e.journal.owner, e.moving and e.moving.machine.state)
        for e in world.control.requests
    ]
    nodes = [
        (name, node.requests.num_running, node.requests.num_moves)
        for name, node in world.nodes.items()
        if node.is_up
    ]
    queues = {link: len(queue) for link, queue in world.queues.items() if queue}
    members = [(name, name in world.control.members) for name in world.nodes if name != HEAD]
    return f"{MODEL}: {entries} {nodes} {queues} {members}"

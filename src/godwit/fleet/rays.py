"""All that Godwit asks of Ray. Where Ray has no public way, what is private stands here and nowhere else."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.util
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from godwit.errors import ConfigError, ConflictError, LinkError
from godwit.fleet.plan import NAMESPACE, Node

HEAD = "head"
HEAD_NODE = "node:__internal_head__"  # a resource that Ray gives to its own head's node, and to no other
ANSWER_S = 5.0
CONNECT_S = 5.0
PORTS = range(1, 65536)
# An actor that is not detached ends with the last reference to it in the process that made it.
_started: dict[str, Any] = {}


def connect(address: str | None) -> None:
    """Join the Ray cluster as a driver; LinkError where there is none."""
    if address is not None:
        _check_answers(address)
    try:
        ray.init(address=address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LinkError(
            f"no Ray cluster at {address or 'this machine'}: {error}; start one with `ray start`"
        ) from error


def _check_answers(address: str) -> None:
    """Where nobody listens Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) in PORTS):
        raise ConfigError(f"--address: HOST:PORT of the Ray cluster's head, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise LinkError(
            f"no Ray cluster at {address}: {error.strerror or error}; start one with `ray start`"
        ) from error


def disconnect() -> None:
    """Leave the Ray cluster."""
    ray.shutdown()


@contextmanager
def _answering() -> Iterator[None]:
    """What goes wrong between here and Ray, as a LinkError."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise LinkError(f"Ray does not answer: {str(error).splitlines()[0]}") from error


@_answering()
def nodes() -> list[Node]:
    """The nodes that Ray holds to be alive, by id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    found = [Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"]) for node in alive]
    return sorted(found, key=lambda node: node.id)


@_answering()
def draining() -> dict[str, int]:
    """Nodes that are to leave, with the wall-clock time in ms by which they must have, 0: no deadline."""
    from ray._private.state import state

    return dict(state.get_draining_nodes())


@_answering()
def actors() -> set[str]:
    """The names of Godwit's actors that are there, or are about to be."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in named if actor["namespace"] == NAMESPACE}


def start_head(kind: type, *arguments: Any) -> None:
    """Have the head's actor made on the node of Ray's own head, and again whenever it dies."""
    options = {"lifetime": "detached", "max_restarts": -1, "num_cpus": 0, "resources": {HEAD_NODE: 0.001}}
    _start(kind, HEAD, options, arguments)


def start_worker(
    kind: type, node: Node, resources: Mapping[str, Any], *arguments: Any, is_detached: bool
) -> None:
    """Have a worker's actor made on a node, there or nowhere, and once: who watches makes the next one."""
    where = NodeAffinitySchedulingStrategy(node.id, soft=False)
    options = {**resources, "max_restarts": 0, "scheduling_strategy": where}
    _start(kind, node.actor, {**options, "lifetime": "detached"} if is_detached else options, arguments)


def _start(kind: type, name: str, options: Mapping[str, Any], arguments: Sequence[Any]) -> None:
    with _answering():
        try:
            actor = ray.remote(kind).options(name=name, namespace=NAMESPACE, max_concurrency=4, **options)
            _started[name] = actor.remote(*arguments)
        except ValueError as error:
            # That the name is taken, or that it cannot be given what it asks for.
            raise ConflictError(f"Ray makes no actor {name}: {error}") from error


def ask(name: str, method: str, timeout_s: float = ANSWER_S) -> Any:
    """What an actor's method returns; LinkError where none answers in time. Blocks."""
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
        return ray.get(getattr(actor, method).remote(), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayError) as error:
        raise LinkError(f"Ray's actor {name} does not answer: {str(error).splitlines()[0]}") from error


def kill(name: str) -> None:
    """End an actor for good; nothing happens where there is none."""
    with _answering(), suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def end_this_actor() -> None:
    """End the actor that this process is."""
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def here() -> Node:
    """The node that this process runs on."""
    node_id = ray.get_runtime_context().get_node_id()
    return next(node for node in nodes() if node.id == node_id)


def raylet_pid() -> int:
    """The process that is this actor's node: Ray starts an actor's process as a child of its raylet."""
    return os.getppid()


def logs_folder() -> Path:
    """Where Ray shows a node's logs from."""
    return Path(ray._private.worker._global_node.get_logs_dir_path())


def session_folder() -> Path:
    """A folder for what lasts as long as the node."""
    return Path(ray._private.worker._global_node.get_session_dir_path())

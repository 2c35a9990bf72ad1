"""What shall run on which nodes of a Ray cluster. Pure: what Ray and the clock say comes in as arguments."""

import ipaddress
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from godwit.config import Settings, is_loopback
from godwit.errors import ConfigError

NAMESPACE = "godwit"
DRAIN_MARGIN_S = 1.0
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
LEAST_AMOUNT = 0.0001
"""Ray counts resources in steps of this size."""
# Ray's own names for what an actor has an argument of its own for.
_ARGUMENTS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Node(Struct, frozen=True):
    """A live node of the Ray cluster; `resources` is all that it has, used or not."""

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def worker(self) -> str:
        """The name of its worker in the Godwit cluster."""
        return f"{self.address}-{self.id[:8]}"

    @property
    def actor(self) -> str:
        """The name of its worker's actor in Ray."""
        return f"worker-{self.id}"


class FleetPlan(Struct, frozen=True):
    """What `godwit ray up` was asked for.

    A node that has `wanted` gets a worker. `join_url` is how workers reach the head, None: at its node's
    address. With `is_detached` everything outlives the command that started it.
    """

    settings: Settings
    wanted: Mapping[str, float]
    join_url: str | None = None
    is_detached: bool = True


class Retries:
    """When what has ended may be started again on a node: soon, but not again and again at once."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[float, float]] = {}

    def may_try(self, node: str, now_s: float) -> bool:
        """Whether it is time; counts as a try where it is."""
        at_s, wait_s = self._tried.get(node, (float("-inf"), FIRST_RETRY_S))
        if now_s - at_s < wait_s:
            return False
        was_well = now_s - at_s > LAST_RETRY_S + wait_s
        self._tried[node] = (now_s, FIRST_RETRY_S if was_well else min(2 * wait_s, LAST_RETRY_S))
        return True

    def keep_only(self, nodes: set[str]) -> None:
        """Forget all other nodes."""
        self._tried = {node: tried for node, tried in self._tried.items() if node in nodes}


def has_resources(node: Node, wanted: Mapping[str, float]) -> bool:
    """Whether a node has all that a worker is to have, were nobody else there."""
    return all(node.resources.get(name, 0.0) >= amount for name, amount in wanted.items())


def read_resources(texts: list[str]) -> dict[str, float]:
    """NAME=AMOUNT, as given on the command line; ConfigError."""
    wanted: dict[str, float] = {}
    for text in texts:
        name, _, amount = text.partition("=")
        try:
            wanted[name.strip()] = float(amount)
        except ValueError as error:
            raise ConfigError(f"--resource: NAME=AMOUNT, as in GPU=1 or godwit=1, not {text!r}") from error
        if not name.strip() or not LEAST_AMOUNT <= wanted[name.strip()] < math.inf:
            raise ConfigError(f"--resource: a name and an amount of at least {LEAST_AMOUNT}, not {text!r}")
    if "object_store_memory" in wanted:
        raise ConfigError("--resource: Ray gives no actor a part of its object_store_memory; leave it out")
    if wanted.get("GPU", 0) > 1 and wanted["GPU"] % 1:
        raise ConfigError("--resource: Ray gives parts of a GPU or whole ones, not both")
    return wanted


def actor_resources(wanted: Mapping[str, float]) -> dict[str, Any]:
    """The same as options of an actor: CPUs, GPUs and memory have arguments of their own."""
    own = {key: wanted[name] for name, key in _ARGUMENTS.items() if name in wanted}
    others = {name: amount for name, amount in wanted.items() if name not in _ARGUMENTS}
    # An actor that asks for no CPU would get one.
    return {"num_cpus": 0, "num_gpus": 0, **own, "resources": others}


def left_s(deadline_ms: int, now_s: float) -> float | None:
    """Seconds until a drain must be over, some in hand; None where Ray names no deadline (0).

    Both times are those of a wall clock.
    """
    return None if deadline_ms == 0 else max(0.0, deadline_ms / 1000 - now_s - DRAIN_MARGIN_S)


def head_on(plan: FleetPlan, address: str) -> Settings:
    """The head's settings on a node: what listens on loopback by default listens at the node's address."""
    head = plan.settings.head
    host = address if is_loopback(head.host) else head.host
    return replace(plan.settings, head=replace(head, host=host))


def worker_on(settings: Settings, address: str) -> Settings:
    """A worker's settings on a node, in the same way."""
    worker = settings.worker
    host = address if is_loopback(worker.peer_host) else worker.peer_host
    return replace(settings, worker=replace(worker, name=None, peer_host=host))


def head_url(plan: FleetPlan, address: str) -> str:
    """Where the head on the node at `address` is reached."""
    if plan.join_url is not None:
        return plan.join_url.rstrip("/")
    head = plan.settings.head
    host = address if is_loopback(head.host) or _is_any(head.host) else head.host
    scheme = "http" if head.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{head.port}"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False

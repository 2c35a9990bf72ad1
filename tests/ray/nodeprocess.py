"""A Ray node as `ray start --block` makes one; that command itself does not stay on loopback."""

import signal
import sys

from ray._private.node import Node
from ray._private.parameter import RayParams

import tests.ray.conftest  # noqa: F401 -- before Ray is imported
from tests.ray.options import NODE

if __name__ == "__main__":
    options = {**NODE, "num_cpus": 1, "resources": {"godwit": 1}, "gcs_address": sys.argv[1]}
    options |= {
        "min_worker_port": 0,
        "max_worker_port": 0,
        "node_manager_port": 0,
        "include_log_monitor": False,
    }
    node = Node(RayParams(**options), head=False, shutdown_at_exit=True, spawn_reaper=False)
    print(node.node_id, flush=True)
    while True:
        signal.pause()

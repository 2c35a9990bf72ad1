"""What all of the tests' Ray nodes have in common: they stay on loopback and are small."""

from typing import Any

NODE: dict[str, Any] = {
    "node_ip_address": "127.0.0.1",
    "include_dashboard": False,
    "object_store_memory": 80 * 2**20,
}

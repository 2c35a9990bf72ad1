"""Which way a request moves, from what is measured or, until then, assumed. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from godwit.costs.crossover import ALL_METHODS, LINKS, Method, MigrationCost, Plan, Server
from godwit.costs.kv import KvSize

AUTO = "auto"
METHODS = (AUTO, *Method)
"""What may be asked for."""

ASSUMED_SERVER = Server(250.0, LINKS["lan"], KvSize.linear(128_000))
"""For a model that nobody has measured: a slow device on a local network."""


class MoveCosts(Struct, frozen=True):
    """The overheads of a move, and how each model is served; `ASSUMED_SERVER` where a model is not there."""

    cost: MigrationCost = MigrationCost(0.5, 0.2)
    servers: Mapping[str, Server] = {}

    def choose(self, method: str, model: str, context_tokens: int) -> Plan:
        """The cheapest way for a context, or the one that is asked for; ValueError where it is none."""
        methods = ALL_METHODS if method == AUTO else (Method(method),)
        server = self.servers.get(model, ASSUMED_SERVER)
        return self.cost.planned(context_tokens, server, server, methods)

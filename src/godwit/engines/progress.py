"""Whether a server that owes an answer for long computes meanwhile, as with a very long prompt."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from godwit.engines.server import UNANSWERED
from godwit.errors import GodwitError

LOOK_S = 2.0
ASK_S = 10.0


class ProgressWatch:
    """Looks at a server again and again while it owes an answer, and keeps when it last had moved on.

    `owed_since` tells since when it owes one (None: it does not), `ask` what changes whenever it computes.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        owed_since: Callable[[], float | None],
        clock: Callable[[], float],
    ) -> None:
        self.moved_s = -math.inf
        self._ask = ask
        self._owed_since = owed_since
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        seen: object = None
        while True:
            await asyncio.sleep(LOOK_S)
            since_s = self._owed_since()
            if since_s is None or self._clock() - since_s < LOOK_S:
                seen = None
                continue
            try:
                async with asyncio.timeout(ASK_S):
                    told = await self._ask()
            except (*UNANSWERED, GodwitError):
                continue
            if seen is not None and told != seen:
                self.moved_s = self._clock()
            seen = told

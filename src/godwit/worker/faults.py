"""A hook for fault tests alone: a worker that dies at one point of the protocol, or whose KV goes wrong.

GODWIT_FAULT=`WORKER:FAULT` makes the worker of that name fail:

- `exit_on=MESSAGE`: it ends, without a word to anybody, when a message of that type (a class of
  `godwit.protocol.messages`) has arrived and before it is acted upon, as if by SIGKILL.
- `corrupt=KvPart`: one bit of each chunk of KV that arrives is turned.
- `drop=KvPart`: the second chunk of each move that arrives is lost.
- `delay=KvPart:SECONDS`: chunks are handed on so much later, and what comes after one waits behind it.

The last three write STRUCK to the log when they strike, so that a test can tell that they did.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from godwit.errors import ConfigError
from godwit.protocol.message import Message
from godwit.protocol.messages import KvPart, PeerMessage
from godwit.types import MoveId, WorkerId

VARIABLE = "GODWIT_FAULT"
EXIT_STATUS = 77
STRUCK = "a fault struck"
LOST_CHUNK = 2
EXIT, CORRUPT, DROP, DELAY = "exit_on=", "corrupt=KvPart", "drop=KvPart", "delay=KvPart:"

_FAULT = os.environ.get(VARIABLE, "")
_log = structlog.get_logger(__name__)


def exit_if_due(worker: str, message: Message) -> None:
    """End this process at once where the environment says so."""
    if f"{worker}:{EXIT}{type(message).__name__}" == _FAULT:
        os._exit(EXIT_STATUS)


class PeerFaults:
    """What befalls the messages of peers between their arrival and `deliver`: nothing without a fault."""

    def __init__(
        self,
        worker: WorkerId,
        deliver: Callable[[WorkerId, PeerMessage | KvPart], None],
        fault: str = _FAULT,
    ) -> None:
        """ConfigError for a fault of this worker that does not exist: a test would prove nothing."""
        self._deliver = deliver
        mine = fault.removeprefix(f"{worker}:") if fault.startswith(f"{worker}:") else ""
        if mine and not mine.startswith((EXIT, DELAY)) and mine not in (CORRUPT, DROP):
            raise ConfigError(f"{VARIABLE}: no fault {mine!r}; there are {EXIT}, {CORRUPT}, {DROP}, {DELAY}")
        self._corrupts, self._drops = mine == CORRUPT, mine == DROP
        self._delay_s = float(mine.removeprefix(DELAY)) if mine.startswith(DELAY) else None
        self._num_chunks: Counter[MoveId] = Counter()
        self._late: dict[WorkerId, deque[tuple[float, PeerMessage | KvPart]]] = {}

    def take(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        """A message has arrived: hand it on, as it is or as the fault has it."""
        if isinstance(message, KvPart):
            self._num_chunks[message.move] += 1
            if self._corrupts:
                self._strike(message)
                first, *rest = message.data
                message = replace(message, data=memoryview(bytes([first ^ 1, *rest])))
            if self._drops and self._num_chunks[message.move] == LOST_CHUNK:
                self._strike(message)
                return
            if self._delay_s is not None:
                self._strike(message)
                self._late.setdefault(peer, deque())
        if peer in self._late:
            self._wait(peer, message)
        else:
            self._deliver(peer, message)

    def gone(self, peer: WorkerId) -> None:
        """The link broke: what waits has never come."""
        self._late.pop(peer, None)

    def _strike(self, message: KvPart) -> None:
        _log.warning(STRUCK, move=message.move, chunk=self._num_chunks[message.move])

    def _wait(self, peer: WorkerId, message: PeerMessage | KvPart) -> None:
        loop, late = asyncio.get_running_loop(), self._late[peer]
        delay_s = (self._delay_s or 0.0) if isinstance(message, KvPart) else 0.0
        due_s = max(loop.time() + delay_s, late[-1][0] if late else 0.0)
        late.append((due_s, message))
        if len(late) == 1:
            loop.call_at(due_s, self._hand_on, peer, late)

    def _hand_on(self, peer: WorkerId, late: deque[tuple[float, PeerMessage | KvPart]]) -> None:
        """Deliver what is due; a queue that its link has left behind is dropped."""
        loop = asyncio.get_running_loop()
        while late and self._late.get(peer) is late:
            if late[0][0] > loop.time():
                loop.call_at(late[0][0], self._hand_on, peer, late)
                return
            self._deliver(peer, late.popleft()[1])
        if self._late.get(peer) is late:
            del self._late[peer]

"""What the scheduler decided and why, and what came of it: the latest of many, by number."""

from collections import deque

from msgspec import Struct

from godwit.types import ModelName, RequestId, WorkerId


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """One decision, or what came of one; `at_s` is the head's clock.

    `kind` is the name of the event or decision in `scheduling.events`, as in "Load". `seconds` is what a
    decision is expected to take, or what something that is over did take.
    """

    seq: int
    at_s: float
    kind: str
    reason: str
    request: RequestId | None = None
    model: ModelName | None = None
    worker: WorkerId | None = None
    destination: WorkerId | None = None
    seconds: float | None = None


class EventLog:
    """The latest `size` entries, numbered from 1 on."""

    def __init__(self, size: int) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=size)
        self._num_added = 0

    @property
    def last_seq(self) -> int:
        """The number of the latest entry, 0 before the first."""
        return self._num_added

    def add(
        self,
        at_s: float,
        kind: str,
        reason: str,
        *,
        request: RequestId | None = None,
        model: ModelName | None = None,
        worker: WorkerId | None = None,
        destination: WorkerId | None = None,
        seconds: float | None = None,
    ) -> None:
        """Write one entry."""
        number = self._num_added + 1
        self.write(LogEntry(number, at_s, kind, reason, request, model, worker, destination, seconds))

    def write(self, entry: LogEntry) -> None:
        """Keep one more entry; whoever looks on overrides this."""
        self._num_added = entry.seq
        self._entries.append(entry)

    def entries(self, since: int = 0) -> list[LogEntry]:
        """Those after number `since` that are still here, oldest first."""
        first = self._num_added - len(self._entries)
        return [self._entries[i] for i in range(max(0, since - first), len(self._entries))]

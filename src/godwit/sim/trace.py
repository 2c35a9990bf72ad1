"""What happened in a simulated world, in words: when, who, what."""

from collections.abc import Callable

from godwit.protocol.message import Message
from godwit.protocol.words import describe
from godwit.scheduling.eventlog import LogEntry
from godwit.sim.notes import Notes
from godwit.types import WorkerId

Write = Callable[[str], None]


class Trace:
    """Writes a line for each thing that happens."""

    def __init__(self, now: Callable[[], float], write: Write) -> None:
        self._now = now
        self._write = write

    def message(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        """A message arrives."""
        self.says(receiver, f"<- {sender}: {describe(message)}")

    def says(self, who: str, what: str) -> None:
        """Anything else; `!` is who brings the faults."""
        mark = "!!" if who == "!" else "  "
        self._write(f"{self._now():10.4f} {mark} {who:8} {what}")


class TracedNotes(Notes):
    """The head's log, written into a trace as well, and counted."""

    def __init__(self, trace: Trace | None, size: int = 0) -> None:
        super().__init__(size)
        self.kinds: dict[str, int] = {}
        self._trace = trace

    def write(self, entry: LogEntry) -> None:
        """Tell of one more entry."""
        self.kinds[entry.kind] = self.kinds.get(entry.kind, 0) + 1
        if self._trace is not None:
            to = f" -> {entry.destination}" if entry.destination else ""
            about = (entry.request, entry.model, entry.worker)
            of = " ".join(str(one) for one in about if one is not None)
            self._trace.says("head", f"{entry.kind} {of}{to}: {entry.reason}")
        super().write(entry)

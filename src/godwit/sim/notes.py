"""What a simulation notes of the head's decisions and of what came of them."""

from collections import Counter

from godwit.scheduling.eventlog import EventLog, LogEntry
from godwit.sim.outcome import Load
from godwit.types import LoadRecord, ModelName, RequestId, WorkerId


class Notes(EventLog):
    """The head's log, and its `scheduling.recorder.Keeper`: sums only, but for the latest `size` entries."""

    def __init__(self, size: int = 0) -> None:
        super().__init__(size)
        self._now_s = 0.0
        self.kills: Counter[RequestId] = Counter()
        self.worker_of: dict[RequestId, WorkerId] = {}
        self.loads: list[Load] = []

    def write(self, entry: LogEntry) -> None:
        """Count one more entry."""
        self._now_s = entry.at_s
        request, worker = entry.request, entry.worker
        destination = entry.destination if entry.kind == "MoveEnded" else None
        if request is not None and entry.kind == "Preempt":
            self.kills[request] += 1
        elif request is not None and worker is not None and entry.kind == "Start":
            self.worker_of[request] = worker
        elif (
            request is not None
            and destination is not None
            and entry.kind == "MoveEnded"
            and "done" in entry.reason
        ):
            self.worker_of[request] = destination
        super().write(entry)

    def load(self, worker: WorkerId, record: LoadRecord) -> None:
        """A load is over."""
        self.loads.append(Load(self._now_s, worker, record))

    def resume(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None:
        """A move is over."""

    def tokens(self, worker: WorkerId, model: ModelName, num_tokens: int, seconds: float) -> None:
        """A stay of a request on a worker is over."""

    def prefill(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None:
        """A request has its first token."""

    def output(self, model: ModelName, num_output: int, expected_tokens: int | None) -> None:
        """A request is whole."""

"""What the scheduler decided, what came of it, and what that teaches the estimates."""

from collections.abc import Mapping
from typing import Protocol

from godwit.ports import Clock
from godwit.protocol.entry import Entry, MoveRecord
from godwit.protocol.messages import Hello
from godwit.protocol.model_messages import ModelChanged
from godwit.scheduling import events
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.view import Times
from godwit.types import LoadRecord, ModelName, RequestId, Tier, WorkerId


class Learner(Times, Protocol):
    """Estimates that learn from what happens (`godwit.costs.startup.StartupTimes`)."""

    def emulates(self, worker: WorkerId, bytes_per_s: Mapping[Tier, float]) -> None: ...

    def learn_load(
        self,
        worker: WorkerId,
        record: LoadRecord,
        predicted_queue_s: float | None,
        predicted_load_s: float | None,
    ) -> None: ...

    def learn_resume(
        self,
        worker: WorkerId,
        model: ModelName,
        context_tokens: int,
        predicted_s: float | None,
        actual_s: float,
    ) -> None: ...

    def learn_prefill(
        self, worker: WorkerId, model: ModelName, context_tokens: int, actual_s: float
    ) -> None: ...

    def learn_output(self, model: ModelName, num_output: int, expected_tokens: int | None) -> None: ...

    def learn_tokens(self, worker: WorkerId, model: ModelName, num_tokens: int, seconds: float) -> None: ...


class Keeper(Protocol):
    """Where what was learnt is kept beyond this process."""

    def load(self, worker: WorkerId, record: LoadRecord) -> None: ...

    def resume(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None: ...

    def tokens(self, worker: WorkerId, model: ModelName, num_tokens: int, seconds: float) -> None: ...

    def prefill(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None: ...

    def output(self, model: ModelName, num_output: int, expected_tokens: int | None) -> None: ...


class Stays(Protocol):
    """Who learns how long workers stay (`godwit.costs.sessions.SessionHazards`)."""

    def joined(self, worker: WorkerId, now: float, incarnation: int) -> None: ...

    def left(self, worker: WorkerId, now: float) -> None: ...

    def notice(self, worker: WorkerId, at_s: float) -> None: ...


class Recorder:
    """Writes the log, and compares predictions with what happened.

    A load's prediction is that of its Load, a resume's is made when its move is decided. What nobody
    predicted, as when a worker loads at its start, teaches the estimates but is no error of theirs.
    """

    def __init__(
        self,
        times: Learner,
        log: EventLog,
        now: Clock,
        keeper: Keeper | None = None,
        stays: Stays | None = None,
    ) -> None:
        self._times = times
        self._log = log
        self._now = now
        self._keeper = keeper
        self._stays = stays
        self._loads: dict[tuple[WorkerId, ModelName], tuple[float, float] | tuple[None, None]] = {}
        self._resumes: dict[RequestId, float] = {}
        self._decoding: dict[RequestId, tuple[WorkerId, float, int]] = {}

    def decided(self, decision: events.Decision, model: ModelName | None) -> None:
        """The scheduler has decided something; `model` is that of the request it is about."""
        kind = type(decision).__name__
        at_s = self._now()
        match decision:
            case events.Load(worker, name, reason, queue_s, load_s):
                self._loads[worker, name] = (queue_s, load_s)
                self._log.add(at_s, kind, reason, model=name, worker=worker, seconds=queue_s + load_s)
            case events.Unload(worker, name, reason):
                self._log.add(at_s, kind, reason, model=name, worker=worker)
            case events.Start(request, worker, reason):
                self._log.add(at_s, kind, reason, request=request, model=model, worker=worker)
            case events.Move():
                self._log.add(
                    at_s,
                    kind,
                    decision.reason,
                    request=decision.request,
                    model=model,
                    worker=decision.source,
                    destination=decision.destination,
                    seconds=decision.load_s + decision.resume_s,
                )
            case events.Interrupt(request, worker, reason, is_preemption):
                kind = "Preempt" if is_preemption else kind
                self._log.add(at_s, kind, reason, request=request, model=model, worker=worker)
            case events.Reject(request, _, message) | events.RefuseMove(request, _, message):
                self._log.add(at_s, kind, message, request=request, model=model)
            case events.Leave(worker):
                self._log.add(at_s, kind, "it is drained", worker=worker)

    def joined(self, hello: Hello) -> None:
        """A worker has come."""
        self._times.emulates(hello.worker, dict(hello.emulated_tiers))
        if self._stays is not None:
            self._stays.joined(hello.worker, self._now(), hello.incarnation)
        self._log.add(self._now(), "WorkerJoined", f"{len(hello.models)} models", worker=hello.worker)

    def left(self, worker: WorkerId, reason: str) -> None:
        """A worker has gone."""
        self._times.emulates(worker, {})
        if self._stays is not None:
            self._stays.left(worker, self._now())
        self._loads = {place: times for place, times in self._loads.items() if place[0] != worker}
        self._log.add(self._now(), "WorkerLeft", reason, worker=worker)

    def leaves_by(self, worker: WorkerId, at_s: float) -> None:
        """A worker is to be gone by then."""
        if self._stays is not None:
            self._stays.notice(worker, at_s)

    def ordered(self, kind: str, model: ModelName) -> None:
        """An operator has ordered something about a model."""
        self._log.add(self._now(), kind, "asked for", model=model)

    def queued(self, request: RequestId, model: ModelName, reason: str) -> None:
        """A request waits for a worker."""
        self._log.add(self._now(), "RequestQueued", reason, request=request, model=model)

    def model_changed(self, worker: WorkerId, message: ModelChanged) -> None:
        """A load is over, well or not."""
        model, record = message.model.name, message.load
        if record is None and message.error is None:
            return
        queue_s, load_s = self._loads.pop((worker, model), (None, None))
        if record is None:
            self._log.add(self._now(), "LoadFailed", message.error or "", model=model, worker=worker)
            return
        seconds = record.queue_s + record.seconds
        reason = f"{record.num_bytes} bytes from {record.tier}"
        self._log.add(self._now(), "Loaded", reason, model=model, worker=worker, seconds=seconds)
        self._times.learn_load(worker, record, queue_s, load_s)
        if self._keeper is not None:
            self._keeper.load(worker, record)

    def accepted(self, request: RequestId, worker: WorkerId, num_tokens: int) -> None:
        """A worker has begun with a request that has so many tokens."""
        self._decoding[request] = (worker, self._now(), num_tokens)

    def drew_first(self, entry: Entry) -> None:
        """A worker has drawn the first token of a request that it began with."""
        worker, at_s, num_tokens = self._decoding[entry.request]
        seconds = self._now() - at_s
        self._times.learn_prefill(worker, entry.model, num_tokens, seconds)
        if self._keeper is not None:
            self._keeper.prefill(worker, entry.model, num_tokens, seconds)

    def ended(self, entry: Entry, *, is_whole: bool) -> None:
        """A request is over; `is_whole`: it came to its own end."""
        request, model, journal = entry.request, entry.model, entry.journal
        worker, _, _ = self._decoding.get(request, (None, 0.0, 0))
        if worker == journal.owner:
            self._learn_tokens(request, model, journal.num_tokens)
        # Else it has lost that worker, and what it waited for another one says nothing of either.
        self._decoding.pop(request, None)
        if is_whole:
            num_output = len(journal.output_ids)
            self._times.learn_output(model, num_output, entry.expected_tokens)
            if self._keeper is not None:
                self._keeper.output(model, num_output, entry.expected_tokens)
        self._resumes.pop(request, None)
        self._log.add(self._now(), "RequestEnded", "", request=request, model=model)

    def move_began(self, entry: Entry, destination: WorkerId, load_s: float = 0.0) -> None:
        """A move begins: how long its resume should take, from what is known of the request by its time.

        That resume begins when the destination has loaded the model, `load_s` from now: until then the
        request draws on.
        """
        worker, at_s, num_tokens = self._decoding.get(entry.request, (destination, self._now(), 0))
        token_s = self._times.token_s(worker, entry.model)
        context = num_tokens + (max(0.0, self._now() - at_s) + load_s) / token_s
        self._resumes[entry.request] = self._times.resume_s(destination, entry.model, context)

    def move_ended(self, record: MoveRecord, num_tokens: int) -> None:
        """A move or failover is over; the request has so many tokens by now."""
        is_done = record.outcome == "done" and record.destination is not None
        self._log.add(
            self._now(),
            "MoveEnded" if record.method != "failover" else "FailoverEnded",
            f"{record.method} {record.outcome}: {record.reason}",
            request=record.request,
            model=record.model,
            worker=record.source,
            destination=record.destination,
            seconds=record.duration_s,
        )
        predicted_s = self._resumes.pop(record.request, None)
        if record.destination is None or not is_done or record.method == "failover":
            return
        self._learn_tokens(record.request, record.model, num_tokens)
        self.accepted(record.request, record.destination, num_tokens)
        actual_s = None if record.actual is None else record.actual.ready_s
        if actual_s is None or predicted_s is None:
            return
        place = (record.destination, record.model)
        self._times.learn_resume(*place, record.context_tokens, predicted_s, actual_s)
        if self._keeper is not None:
            self._keeper.resume(*place, record.context_tokens, actual_s)

    def _learn_tokens(self, request: RequestId, model: ModelName, num_tokens: int) -> None:
        if (decoding := self._decoding.pop(request, None)) is None:
            return
        worker, at_s, first = decoding
        seconds = self._now() - at_s
        if num_tokens > first and seconds > 0:
            self._times.learn_tokens(worker, model, num_tokens - first, seconds)
            if self._keeper is not None:
                self._keeper.tokens(worker, model, num_tokens - first, seconds)

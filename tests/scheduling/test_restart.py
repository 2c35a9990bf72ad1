"""A scheduler that starts anew beside requests that are on their way."""

from collections.abc import Sequence

from godwit.costs.startup import StartupTimes
from godwit.errors import GodwitError
from godwit.protocol.head import HeadLimits
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    Accepted,
    Hello,
    Migrated,
    Prepare,
    Prepared,
    Submit,
    TokenEvent,
    Tokens,
)
from godwit.scheduling.control import Control
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.policies import availability
from godwit.scheduling.recorder import Recorder
from godwit.scheduling.scheduler import Scheduler
from godwit.types import (
    Alternative,
    Epoch,
    ModelInfo,
    ModelName,
    MoveId,
    MoveLimits,
    Promise,
    RequestId,
    Sampling,
    TextPrompt,
    TokenId,
    WorkerId,
)

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
REQUEST, MOVE, MODEL = RequestId("r"), MoveId("m"), ModelName("model")


class Heard:
    """A sink that notes which tokens came."""

    def __init__(self) -> None:
        self.ids: list[TokenId] = []

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None: ...

    def tokens(
        self,
        first_index: int,  # noqa: ARG002 -- the protocol's
        ids: Sequence[TokenId],
        texts: Sequence[bytes],  # noqa: ARG002 -- the protocol's
        alternatives: Sequence[tuple[Alternative, ...]],  # noqa: ARG002 -- the protocol's
    ) -> None:
        self.ids += ids

    def approximate(self, broken: Sequence[Promise]) -> None: ...

    def flush(self) -> None: ...

    def finished(self, reason: str) -> None: ...

    def failed(self, error: GodwitError) -> None: ...


class Head:
    """A Control, all that it sent, and workers that join it."""

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, Message]] = []
        self.sink = Heard()
        times = StartupTimes()
        self.control = Control(
            send=lambda worker, message: self.sent.append((worker, message)),
            wake=lambda: None,
            new_move=lambda: MOVE,
            new_scheduler=lambda: Scheduler(availability, times),
            limits=HeadLimits(),
            move_limits=MoveLimits(),
            placement_timeout_s=10.0,
            policy="availability",
            recorder=Recorder(times, EventLog(100), lambda: 0.0),
            on_record=lambda _: None,
            now=lambda: 0.0,
        )

    def join(self, worker: WorkerId) -> None:
        info = ModelInfo(MODEL, "digest", 1000, 1, is_loaded=True, has_chat_template=False)
        self.control.joined(Hello(worker, 1, 4, 100, (info,), None))

    def tokens(self, worker: WorkerId, epoch: Epoch, first: int) -> None:
        event = TokenEvent(REQUEST, epoch, first, [7], [b"x"])
        self.control.on_worker(worker, Tokens([event]))

    def epoch_of(self, kind: type[Submit] | type[Prepare]) -> Epoch:
        return next(message.epoch for _, message in self.sent if isinstance(message, kind))


def test_a_request_whose_source_died_after_the_handover_is_left_to_its_destination() -> None:
    """The journal names an owner that is gone; placing the request anew would make two of it."""
    head = Head()
    head.join(A)
    head.control.start(REQUEST, MODEL, TextPrompt("x"), Sampling(1, 100), head.sink)
    head.control.on_worker(A, Accepted(REQUEST, head.epoch_of(Submit), (1,)))
    head.tokens(A, head.epoch_of(Submit), 0)
    head.join(B)
    head.join(C)
    head.control.ask_move(REQUEST, B, None, lambda _: None)
    head.control.on_worker(B, Prepared(MOVE))
    head.control.on_worker(A, Migrated(MOVE, 1, 0, ()))
    head.control.gone(A, "killed")
    head.sent.clear()
    head.control.restart_scheduler()
    assert not [message for _, message in head.sent if isinstance(message, Submit)]
    entry = head.control.requests.get(REQUEST)
    assert entry is not None
    head.tokens(B, entry.journal.candidate_epoch, 1)
    assert entry.journal.owner == B
    assert head.sink.ids == [7, 7]
    view = head.control.view()
    assert (view.workers[B].num_used, view.workers[C].num_used) == (1, 0)


def test_and_fails_over_once_if_the_destination_dies_too() -> None:
    head = Head()
    head.join(A)
    head.control.start(REQUEST, MODEL, TextPrompt("x"), Sampling(1, 100), head.sink)
    head.control.on_worker(A, Accepted(REQUEST, head.epoch_of(Submit), (1,)))
    head.join(B)
    head.join(C)
    head.control.ask_move(REQUEST, B, None, lambda _: None)
    head.control.on_worker(B, Prepared(MOVE))
    head.control.on_worker(A, Migrated(MOVE, 0, 0, ()))
    head.control.gone(A, "killed")
    head.control.restart_scheduler()
    head.sent.clear()
    head.control.gone(B, "killed")
    assert [worker for worker, message in head.sent if isinstance(message, Submit)] == [C]

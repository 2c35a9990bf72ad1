"""An engine with a recorder: what the tests of the contract drive, whichever engine is behind it."""

import threading
from collections.abc import Callable, Sequence
from itertools import count

from godwit.ports import Computed, Ended, Engine, EngineEvent, Failed, Generated, Held, SequenceSpec
from godwit.types import RequestId, Sampling, TokenId
from tests.patience import DEADLINE_S


def _nothing() -> None:
    """What a hook that is not there does."""


class Rig:
    """Records every event with the step that it came in, and waits for conditions over them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changed = threading.Condition()
        self._events: list[tuple[int, EngineEvent]] = []
        self._ids = count()
        self._hooks: dict[tuple[RequestId, int], Callable[[], None]] = {}
        engine.start(self._on_step)

    def _on_step(self, events: Sequence[EngineEvent]) -> None:
        with self._changed:
            self._events.extend((self.engine.num_steps, event) for event in events)
            self._changed.notify_all()
        for event in events:
            if isinstance(event, Generated):
                self._hooks.pop((event.request, event.index), _nothing)()

    def when_drawn(self, request: RequestId, index: int, act: Callable[[], None]) -> None:
        """Run `act` in the engine's thread as soon as this output is reported: before the next boundary."""
        self._hooks[request, index] = act

    def name(self) -> RequestId:
        return RequestId(f"r{next(self._ids)}")

    def steps(self, request: RequestId | None) -> list[tuple[int, EngineEvent]]:
        """All events of one request so far, each with its step."""
        with self._changed:
            return [(step, event) for step, event in self._events if event.request == request]

    def events(self, request: RequestId | None) -> list[EngineEvent]:
        return [event for _, event in self.steps(request)]

    def wait(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_done, DEADLINE_S), self._events[-5:]

    def wait_for(
        self, request: RequestId | None, kind: type[EngineEvent], *, occurrences: int = 1
    ) -> EngineEvent:
        """The latest event of this kind once `occurrences` of them have come."""

        def found() -> list[EngineEvent]:
            return [e for _, e in self._events if e.request == request and isinstance(e, kind)]

        self.wait(lambda: len(found()) >= occurrences)
        return found()[-1]

    def open(self, spec: SequenceSpec) -> RequestId:
        request = self.name()
        self.engine.check(spec)
        self.engine.open(request, spec)
        return request

    def outputs(self, request: RequestId) -> list[TokenId]:
        """The ids drawn so far; asserts that each index came once and in order."""
        drawn = [e for e in self.events(request) if isinstance(e, Generated)]
        first = drawn[0].index if drawn else 0
        assert [e.index for e in drawn] == list(range(first, first + len(drawn)))
        return [e.token.id for e in drawn]

    def finish(self, request: RequestId) -> tuple[list[TokenId], str]:
        """Wait for the end, release, and return what was drawn and why it ended."""
        ended = self.wait_for(request, Ended)
        assert isinstance(ended, Ended)
        self.engine.release(request)
        return self.outputs(request), ended.reason

    def run(
        self, prompt: Sequence[TokenId], sampling: Sampling, outputs: Sequence[TokenId] = ()
    ) -> list[TokenId]:
        """Everything that is drawn from here to the end, in one go."""
        request = self.open(SequenceSpec(tuple(prompt), tuple(outputs), sampling))
        self.engine.generate(request)
        return self.finish(request)[0]

    def computed(self, request: RequestId) -> list[Computed]:
        return [e for e in self.events(request) if isinstance(e, Computed)]

    def held(self, request: RequestId, *, occurrences: int = 1) -> int:
        event = self.wait_for(request, Held, occurrences=occurrences)
        assert isinstance(event, Held)
        return event.num_output

    def failure(self, request: RequestId | None) -> str:
        event = self.wait_for(request, Failed)
        assert isinstance(event, Failed)
        return event.message

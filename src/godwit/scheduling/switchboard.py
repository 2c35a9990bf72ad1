"""What the head makes of its links: who may join, what a loss means, and who takes which message. No I/O."""

from collections.abc import Callable

from godwit.errors import ProtocolError
from godwit.protocol.message import Message
from godwit.protocol.messages import Abandon, Alive, FromWorker, Hello, Left, Relayed
from godwit.scheduling.control import Control
from godwit.types import WorkerId


class Switchboard:
    """One head's links, whoever carries them. `send` must ignore workers that are gone."""

    def __init__(self, control: Control, send: Callable[[WorkerId, Message], None]) -> None:
        self._control = control
        self._send = send
        self._incarnations: dict[WorkerId, int] = {}

    def may_join(self, hello: Hello) -> bool:
        """Whether no later life of the worker has joined."""
        return hello.incarnation >= self._incarnations.get(hello.worker, 0)

    def joined(self, hello: Hello) -> None:
        """A worker has a link; the end of a former one must have been reported."""
        self._incarnations[hello.worker] = hello.incarnation
        self._control.joined(hello)

    def left(self, worker: WorkerId, reason: str) -> None:
        """A worker's link is over."""
        self._abandon_for(worker, reason)
        self._control.gone(worker, reason)

    def take(self, worker: WorkerId, message: FromWorker) -> str | None:
        """Take a message of a worker; a text is why its link must end."""
        match message:
            case Alive():
                return "its engine is stalled" if message.is_stalled else None
            case Relayed():
                self._send(message.peer, Relayed(worker, message.message))
            case Left():
                return "left on purpose"
            case Hello():
                raise ProtocolError("Hello came twice")
            case _:
                self._control.on_worker(worker, message)
        return None

    def _abandon_for(self, source: WorkerId, reason: str) -> None:
        """Speak for a source that is gone to the destinations of its moves.

        One that the source never reached would wait for the handover until its deadline. One that owns its
        request, or has a link to the source, takes no notice: that link's own end comes after the commit.
        """
        for entry in self._control.requests:
            if entry.moving is not None and entry.moving.source == source:
                abandon = Abandon(entry.moving.move, f"{source}: {reason}")
                self._send(entry.moving.destination, Relayed(source, abandon))

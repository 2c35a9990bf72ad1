"""Models that operators add to a running cluster, remove from it, and pin."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from godwit.config import ModelSettings
from godwit.errors import ConflictError, NotFoundError
from godwit.protocol.message import Message
from godwit.protocol.model_messages import AddModel, ModelChanged, ModelRefused, ModelRemoved, RemoveModel
from godwit.types import ModelName, WorkerId

Answers = dict[WorkerId, str | None]
"""What each worker said: None where it did as it was asked, else why not."""


@dataclass(slots=True)
class _Asked:
    """An order to all workers, whose answers are awaited: to add a model of these settings, or remove it."""

    waiting: set[WorkerId]
    done: Callable[[Answers], None]
    answers: Answers
    settings: ModelSettings
    is_removal: bool


class Catalog:
    """What was added and pinned; `added` are also sent to workers that join later.

    A model is added as soon as one worker has it: the others said what they lack, and try again when they
    next join.
    """

    def __init__(self, send: Callable[[WorkerId, Message], None]) -> None:
        self._send = send
        self._asked: dict[ModelName, _Asked] = {}
        self.added: dict[ModelName, ModelSettings] = {}
        self.pinned: set[ModelName] = set()

    def add(
        self, settings: ModelSettings, workers: Iterable[WorkerId], done: Callable[[Answers], None]
    ) -> None:
        """Have all workers serve one more model; ConflictError where the name stands for something else."""
        name = ModelName(settings.name)
        if self.added.get(name, settings) != settings:
            raise ConflictError(f"{name} was added with other settings; `godwit models rm {name}` first")
        self._ask(name, workers, done, AddModel(settings), settings)

    def remove(self, name: ModelName, workers: Iterable[WorkerId], done: Callable[[Answers], None]) -> None:
        """Have all workers forget a model that was added; NotFoundError for any other.

        Who waits for it and who runs it must have been seen to before. If a worker refuses, it stays added.
        """
        if name not in self.added:
            raise NotFoundError(
                f"{name} was not added to this cluster; what is in a worker's configuration is removed there"
            )
        settings = self.added[name]
        self._ask(name, workers, done, RemoveModel(name), settings)

    def is_removing(self, name: ModelName, worker: WorkerId) -> bool:
        """Whether the worker has been told to forget the model and has not answered yet."""
        asked = self._asked.get(name)
        return asked is not None and asked.is_removal and worker in asked.waiting

    def joined(self, worker: WorkerId, models: Mapping[ModelName, object]) -> None:
        """A worker has come: it is told what it does not know, but not what is just being removed. Where a
        model is just being added its answer counts as well."""
        for asked in self._asked.values():
            if not asked.is_removal:
                asked.waiting.add(worker)
                self._send(worker, AddModel(asked.settings))
        for name, settings in self.added.items():
            if name not in models and name not in self._asked:
                self._send(worker, AddModel(settings))

    def gone(self, worker: WorkerId) -> None:
        """A worker is lost; nobody waits for its answer any more."""
        for name in list(self._asked):
            # One that is removed is no more in a worker that is gone.
            self._answer(name, worker, None if self.is_removing(name, worker) else "it is gone")

    def heard(self, worker: WorkerId, message: ModelChanged | ModelRefused | ModelRemoved) -> None:
        """Take a worker's answer, if this is one."""
        if isinstance(message, ModelChanged):
            if not self.is_removing(message.model.name, worker):
                self._answer(message.model.name, worker, message.error)
        else:
            self._answer(message.model, worker, message.reason if isinstance(message, ModelRefused) else None)

    def _ask(
        self,
        name: ModelName,
        workers: Iterable[WorkerId],
        done: Callable[[Answers], None],
        order: Message,
        settings: ModelSettings,
    ) -> None:
        if name in self._asked:
            raise ConflictError(f"{name} is being added or removed right now; wait for that to end")
        asked = self._asked[name] = _Asked(set(workers), done, {}, settings, isinstance(order, RemoveModel))
        for worker in sorted(asked.waiting):
            self._send(worker, order)
        self._end_if_complete(name, asked)

    def _answer(self, name: ModelName, worker: WorkerId, problem: str | None) -> None:
        asked = self._asked.get(name)
        if asked is None or worker not in asked.waiting:
            return
        asked.waiting.discard(worker)
        asked.answers[worker] = problem
        if problem is None and not asked.is_removal:
            self.added[name] = asked.settings
        self._end_if_complete(name, asked)

    def _end_if_complete(self, name: ModelName, asked: _Asked) -> None:
        if asked.waiting:
            return
        del self._asked[name]
        if asked.is_removal and not any(asked.answers.values()):
            del self.added[name]
        asked.done(asked.answers)

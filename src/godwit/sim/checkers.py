"""What must hold in a simulated cluster after every event, and what once everything has come to rest.

After an event only what it can have changed is looked at; everything every `FULL_EVERY` events.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from godwit.costs.choice import MoveCosts
from godwit.costs.sessions import SessionHazards
from godwit.costs.startup import StartupTimes
from godwit.errors import GodwitError, ModelNotFoundError, UnavailableError
from godwit.protocol.entry import Entry
from godwit.protocol.message import Message
from godwit.protocol.messages import Tokens
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.policies import POLICIES, free_slot, start_of
from godwit.sim.draws import PackedDraws
from godwit.sim.leaks import remembered
from godwit.sim.network import HEAD
from godwit.sim.situation import PLACEMENT_TIMEOUT_S, Asked
from godwit.sim.worker import SimWorker
from godwit.sim.world import World
from godwit.types import Alternative, Promise, RequestId, Sampling, TokenId, WorkerId

FULL_EVERY = 4
MAX_UNDER_WAY = 500
"""Frames on one way: far more than any seed needs, far less than a leak makes."""
MAX_COMMANDS = 200
_NAMES = re.compile(r"r\d+(@\d+)?|m\d+")
"""What requests, engines' sequences and moves are called here."""
_LEARNT = (EventLog, StartupTimes, MoveCosts, SessionHazards)
"""What remembers on purpose."""


class BrokenError(AssertionError):
    """Something that must hold does not."""


Justify = Callable[["CheckingClient", GodwitError], None]
"""BrokenError where there was no good reason for the request to fail now."""


class CheckingClient:
    """Implements `ports.Sink`: takes its answer token by token, each of which must be the next one.

    Where there are several checkpoints, each with its own `draws`, all of its tokens must be of one.
    """

    def __init__(
        self,
        request: RequestId,
        asked: Asked,
        draws: Iterable[PackedDraws],
        began_s: float,
        justify: Justify,
        leave: Callable[[RequestId], None],
    ) -> None:
        self.request = request
        self.asked = asked
        self.prompt = tuple(range(1, asked.num_prompt + 1))
        self.sampling = Sampling(asked.seed, asked.max_tokens, ignore_eos=asked.ignore_eos)
        self._runs = [one.unmoved_run(self.prompt, self.sampling) for one in draws]
        self.num_tokens = 0
        self.outcome: str | None = None
        self.error: GodwitError | None = None
        self.began_s = began_s
        self._justify = justify
        self._leave = leave

    @property
    def expected(self) -> list[TokenId]:
        """The tokens of the unmoved run; while several are possible, of one of them."""
        return self._runs[0][0]

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """It has started."""
        self._check(tuple(prompt_ids) == self.prompt, "another prompt was accepted")

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],  # noqa: ARG002 -- part of the contract
    ) -> None:
        end = first_index + len(ids)
        if self.outcome is not None or first_index != self.num_tokens:
            self._check(False, f"index {first_index} came after {self.num_tokens} tokens")
        self._runs = [run for run in self._runs if run[0][first_index:end] == list(ids)]
        if not self._runs:
            self._check(False, f"tokens {first_index} to {end} are not those of the unmoved run")
        if len(texts) != len(ids):
            self._check(False, "there are not as many texts as tokens")
        self.num_tokens = end
        if self.asked.leaves_at is not None and end > self.asked.leaves_at:
            self._leave(self.request)  # in the middle of what the head does, as a client's broken link is

    def approximate(self, broken: Sequence[Promise]) -> None:
        self._check(not broken, f"its continuation broke {', '.join(broken)}")

    def flush(self) -> None:
        """Nothing is written anywhere."""

    def finished(self, reason: str) -> None:
        due = [f"{why} after {len(ids)} tokens" for ids, why in self._runs]
        told = f"{reason} after {self.num_tokens} tokens"
        self._check(told in due, f"finished with {told}, not with {' or '.join(due)}")
        self.outcome = "finished"

    def failed(self, error: GodwitError) -> None:
        self._check(isinstance(error, GodwitError), f"failed with {error!r}")
        self.outcome, self.error = "failed", error
        self._justify(self, error)

    def _check(self, is_so: bool, what: str) -> None:
        if self.outcome is not None:
            raise BrokenError(f"{self.request}: something comes after its end")
        if not is_so:
            raise BrokenError(f"{self.request}: {what}")


class Checkers:
    """Looks at a world after every event. Raises BrokenError, as clients do."""

    def __init__(self, world: World, clients: Mapping[RequestId, CheckingClient]) -> None:
        self._world = world
        self._clients = clients
        self._touched: set[WorkerId] = set()
        self._before: list[tuple[Entry, int, bool]] = []

    def arrives(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        """Remember what a message must not change."""
        self._touched.add(receiver)
        if type(message) is not Tokens:
            return
        for event in message.events:
            entry = self._world.head.control.requests.get(event.request)
            if entry is not None:
                journal = entry.journal
                may_append = (sender, event.epoch) in (
                    (journal.owner, journal.epoch),
                    (journal.candidate, journal.candidate_epoch),
                )
                self._before.append((entry, len(journal.output_ids), may_append))

    def was_taken(self) -> None:
        """Who may not append has not."""
        before, self._before = self._before, []
        for entry, num_tokens, may_append in before:
            if not may_append and len(entry.journal.output_ids) != num_tokens:
                raise BrokenError(f"{entry.request}: tokens of one who does not own it were taken")

    def after_event(self) -> None:
        """Check what the event can have changed."""
        world = self._world
        if world.loop.num_events % FULL_EVERY == 0:
            self._touched.clear()
            self.check_all()
        elif self._touched:
            for name in self._touched:
                if name == HEAD:
                    self._check_entries()
                else:
                    self._check_worker(world.workers[name])
            self._touched.clear()

    def check_all(self) -> None:
        """Check everything that holds at every moment."""
        self._check_entries()
        for worker in self._world.workers.values():
            self._check_worker(worker)
        self._check_epochs()
        self._check_waiting()
        network = self._world.network
        for link in network.links:
            num = network.num_under_way(link)
            if num > MAX_UNDER_WAY:
                raise BrokenError(f"{num} frames are under way from {link[0]} to {link[1]}")

    def _check_entries(self) -> None:
        for entry in self._world.head.control.requests:
            journal, client = entry.journal, self._clients[entry.request]
            if client.outcome is not None:
                raise BrokenError(f"{entry.request} is at the head, but over for its client")
            if client.num_tokens != len(journal.output_ids):
                raise BrokenError(f"{entry.request}: not all was delivered")
            if entry.moving is not None or journal.candidate is not None:
                _check_move(entry)

    def _check_worker(self, worker: SimWorker) -> None:
        if not worker.is_up:
            return
        instances = worker.instances
        if (held := instances.held_bytes) > worker.spec.device_bytes:
            raise BrokenError(f"{worker.name} holds {held} of {worker.spec.device_bytes} bytes")
        num_taken = 0
        for driver in instances.drivers.values():
            engine = driver.engine
            num_free = engine.free_slots
            if not 0 <= num_free <= engine.slots:
                raise BrokenError(f"{worker.name}: {num_free} of {engine.slots} slots are free")
            if engine.num_commands > MAX_COMMANDS:
                raise BrokenError(f"{worker.name}: {engine.num_commands} commands wait")
            num_taken += engine.slots - num_free
        known = worker.requests.sequences
        if num_taken != len(known):
            names = ", ".join(sorted(known)) or "nobody"
            raise BrokenError(f"{worker.name}: {num_taken} slots are taken, by {names}")

    def _check_waiting(self) -> None:
        """Nobody waits who could start."""
        control = self._world.head.control
        waiting = control.scheduler.waiting
        if not waiting or not self._world.head.is_up or start_of(POLICIES[control.policy]) is not free_slot:
            return
        view = control.view()
        for one in waiting:
            if (choice := free_slot(view, one.model, one.not_on)) is not None:
                raise BrokenError(f"{one.request} waits, but {choice.worker} has a free slot")

    def _check_epochs(self) -> None:
        """Each stay of a request is on one worker, and of an epoch that the head has given it."""
        control = self._world.head.control
        seen: dict[RequestId, WorkerId] = {}
        for worker in self._world.workers.values():
            for sequence in worker.requests.sequences if worker.is_up else ():
                if sequence in seen:
                    raise BrokenError(f"{sequence} is on {worker.name} and on {seen[sequence]}")
                seen[sequence] = worker.name
                name, _, epoch = sequence.rpartition("@")
                if (entry := control.requests.get(RequestId(name))) is not None:
                    journal = entry.journal
                    if int(epoch) > max(journal.epoch, journal.candidate_epoch):
                        raise BrokenError(f"{sequence} is of an epoch that nobody gave it")

    def justify(self, client: CheckingClient, error: GodwitError) -> None:
        """A request may only fail because its head died, nobody had room in time, or it lost too many."""
        world, text = self._world, error.message
        waited_s = world.loop.now_s - client.began_s
        if isinstance(error, ModelNotFoundError):
            members = world.head.control.members.values()
            is_good = not any(client.asked.model in member.models for member in members)
        elif not isinstance(error, UnavailableError):
            is_good = False
        elif "the head is gone" in text:
            is_good = not world.head.is_up
        elif "in time" in text:
            is_good = waited_s >= PLACEMENT_TIMEOUT_S
        else:
            is_good = "lost its server" in text
        if not is_good:
            raise BrokenError(f"{client.request} failed for no good reason: {error.code}: {text}")

    # --- at rest --------------------------------------------------------------------------------------------

    def why_no_rest(self) -> str | None:
        """What is still going on; None where nothing can happen any more but by a new wish or fault."""
        world = self._world
        if not world.head.is_up:
            return "the head is down"
        waiting = [(e.request, e.state, e.journal.owner) for e in world.head.control.requests]
        if waiting:
            return f"requests at the head: {waiting}"
        for worker in _up(world.workers.values()):
            requests, instances = worker.requests, worker.instances
            if not worker.is_linked or worker.name not in world.head.control.members:
                return f"{worker.name} has no link to the head"
            if requests.num_moves or requests.num_running:
                return f"{worker.name} has {requests.num_running} requests and {requests.num_moves} moves"
            if instances.loading or instances.is_unloading:
                return f"{worker.name} loads {instances.loading} or unloads"
            if world.head.control.members[worker.name].is_draining:
                return f"{worker.name} is drained but has not left"
        if world.network.busy:
            return f"messages are under way: {world.network.busy}"
        return None

    def check_at_rest(self) -> None:
        """Every request has ended well or with a justified error, and the books say what the workers have."""
        self.check_all()
        for client in self._clients.values():
            check(client.outcome is not None, f"{client.request} has heard nothing")
        world = self._world
        view = world.head.control.view()
        up = {worker.name: worker for worker in _up(world.workers.values())}
        check(set(view.workers) == set(up), f"the scheduler knows {set(view.workers)}, {set(up)} are up")
        for name, known in view.workers.items():
            check(known.num_used == 0, f"the scheduler keeps {known.num_used} slots of {name}")
            check(known.claimed_bytes == 0, f"the scheduler keeps {known.claimed_bytes} bytes of {name}")
            instances = up[name].instances
            check(not up[name].requests.sequences, f"{name} has {up[name].requests.sequences}")
            for model, state in known.models.items():
                is_there = instances.get(model) is not None
                where = f"{model} on {name}"
                check(state.info.is_loaded == is_there, f"{where}: loaded: {is_there}, not so in the books")
                check(
                    not (state.is_loading or state.is_coming or state.is_leaving),
                    f"{where} is loading, coming or leaving in the books",
                )
        self._check_forgotten()

    def _check_forgotten(self) -> None:
        """Nobody remembers a request or a move that is over."""
        roots: list[object] = [self._world.head.control]
        for worker in _up(self._world.workers.values()):
            roots += [worker.requests, worker.instances]
        for root in roots:
            for path in remembered(root, lambda text: _NAMES.fullmatch(text) is not None, _LEARNT):
                raise BrokenError(f"it is over, but remembered at {path}")


def _check_move(entry: Entry) -> None:
    journal, moving = entry.journal, entry.moving
    if journal.candidate is None:
        check(
            moving is not None and moving.is_adopted and journal.owner == moving.destination,
            f"{entry.request} moves, but nobody is to have it",
        )
        return
    check(
        moving is not None and moving.destination == journal.candidate,
        f"{entry.request} is offered to {journal.candidate} without a move there",
    )
    check(
        journal.candidate != journal.owner and journal.candidate_epoch > journal.epoch,
        f"{entry.request} is offered to {journal.candidate}, its owner or of an old epoch",
    )


def check(is_so: bool, what: str) -> None:
    """BrokenError where something is not so."""
    if not is_so:
        raise BrokenError(what)


def _up(workers: Iterable[SimWorker]) -> list[SimWorker]:
    return [worker for worker in workers if worker.is_up]

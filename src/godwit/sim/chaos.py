"""Deterministic simulation testing: plays one seed's situation and says what was broken, if anything was."""

from collections import Counter
from functools import partial

import numpy as np
from msgspec import Struct

from godwit.errors import GodwitError, InvariantBrokenError, OverloadedError
from godwit.protocol.entry import MoveRecord
from godwit.protocol.message import Message
from godwit.sim.checkers import BrokenError, Checkers, CheckingClient
from godwit.sim.faults import WEIGHTS, Faults
from godwit.sim.situation import DRAWS, LAST_FAULT_S, OTHER, Asked, Situation, situation_of
from godwit.sim.trace import Trace, TracedNotes, Write
from godwit.sim.world import World
from godwit.types import RequestId, TokenPrompt, WorkerId

REST_AFTER_S = 120.0
"""From the last fault on: longer than all deadlines but that for a request that makes no progress at all,
which is a fault that the deadline would only hide."""
MAX_EVENTS = 200_000
_BREAKS = (AssertionError, GodwitError, InvariantBrokenError, LookupError, TypeError, ValueError)


class Played(Struct, frozen=True):
    """What came of one situation: `problem` is None where all held. `counts` say what happened, by kind."""

    seed: int
    problem: str | None
    num_events: int
    end_s: float
    counts: dict[str, int]


def play_seed(seed: int, write: Write | None = None) -> Played:
    """The world of a seed, played to its end; with `write` each line of its trace."""
    return play(situation_of(seed, WEIGHTS), write)


def play(situation: Situation, write: Write | None = None) -> Played:
    """One situation, played to its end."""
    chaos = Chaos(situation, write)
    problem = None
    try:
        chaos.play()
    except _BREAKS as error:
        problem = f"{type(error).__name__}: {error}"
        chaos.says("!", f"BROKEN: {problem}")
    return Played(situation.seed, problem, chaos.num_events, chaos.end_s, dict(chaos.counts()))


class Chaos:
    """One world with its clients, faults and checkers; it looks on at all that happens (`world.Watch`)."""

    def __init__(self, situation: Situation, write: Write | None = None) -> None:
        self._situation = situation
        self.clients: dict[RequestId, CheckingClient] = {}
        self._records: list[MoveRecord] = []
        self._draws = (DRAWS, OTHER) if situation.others else (DRAWS,)
        self._trace = None if write is None else Trace(lambda: self.world.loop.now_s, write)
        self._notes = TracedNotes(self._trace)
        self.world = World(
            situation.cluster,
            situation.settings,
            situation.life(),
            DRAWS,
            np.random.default_rng(situation.seed).random,
            lambda *_: None,
            self._records.append,
            self._notes,
            self,
        )
        self.world.relayed.update(situation.relayed)
        self.checkers = Checkers(self.world, self.clients)
        self._faults = Faults(self.world, situation.faults, self._running, self._cancel, self.says)

    @property
    def num_events(self) -> int:
        return self.world.loop.num_events

    @property
    def end_s(self) -> float:
        return self.world.loop.now_s

    def play(self) -> None:
        """Let everything befall it, then let it come to rest. BrokenError where something must not be."""
        self.begin()
        self.run_until(LAST_FAULT_S)
        self.settle()

    def begin(self) -> None:
        """Let the workers join, and plan what clients ask for."""
        world = self.world
        for spec, skew_s in zip(world.specs.values(), self._situation.skews_s, strict=True):
            world.join(spec.name, skew_s)
        for number, asked in enumerate(self._situation.asks):
            request = RequestId(f"r{number}")
            world.loop.at(asked.at_s, partial(self._ask, request, asked))

    def settle(self) -> None:
        """End all faults, bring back who is gone, and let things run until they rest."""
        world = self.world
        self._faults.end()
        self.says("!", "no more faults")
        for name, worker in world.workers.items():
            if not worker.is_up:
                world.join(name)
        end_s = world.loop.now_s + REST_AFTER_S
        why: str | None = "it has just ended"
        while why is not None:
            if world.loop.now_s > end_s:
                raise BrokenError(f"no rest after {REST_AFTER_S:g} s: {why}")
            self.run_until(world.loop.now_s + 0.5)
            why = self.checkers.why_no_rest()
        self.checkers.check_at_rest()

    def counts(self) -> Counter[str]:
        """What happened, by kind."""
        counts: Counter[str] = Counter()
        for kind, number in self._faults.counts.items():
            counts[f"fault {kind}"] += number
        for record in self._records:
            if record.method == "failover":
                counts["failover"] += 1
            else:
                counts[f"move {record.outcome} {record.method}"] += 1
        for client in self.clients.values():
            counts[f"request {client.outcome}"] += 1
            counts["tokens"] += client.num_tokens
        for kind, number in self._notes.kinds.items():
            counts[f"decision {kind}"] += number
        return counts

    def run_until(self, end_s: float) -> None:
        """Let everything happen that is due by then, and check after each event."""
        loop, after_event = self.world.loop, self.checkers.after_event
        while loop.next_s <= end_s:
            loop.step()
            after_event()
            if loop.num_events > MAX_EVENTS:
                raise BrokenError(f"{MAX_EVENTS} events and no end")
        loop.now_s = end_s

    def _ask(self, request: RequestId, asked: Asked) -> None:
        if not self.world.head.is_up:
            return
        client = CheckingClient(
            request, asked, self._draws, self.world.loop.now_s, self.checkers.justify, self._cancel
        )
        self.clients[request] = client
        self.says("client", f"{request} asks for up to {asked.max_tokens} tokens of {asked.model}")
        prompt = TokenPrompt(client.prompt)
        try:
            self.world.head.control.start(request, asked.model, prompt, client.sampling, client)
        except OverloadedError:
            client.outcome = "refused"

    def _cancel(self, request: RequestId) -> None:
        client = self.clients[request]
        self.world.head.control.cancel(request)
        if client.outcome is None:
            client.outcome = "cancelled"

    def _running(self) -> list[RequestId]:
        return [entry.request for entry in self.world.head.control.requests]

    # --- Watch ----------------------------------------------------------------------------------------------

    def arrives(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        if self._trace is not None:
            self._trace.message(sender, receiver, message)
        self.checkers.arrives(sender, receiver, message)

    def was_taken(self, sender: WorkerId, receiver: WorkerId, message: Message) -> None:
        self.checkers.was_taken()
        self._faults.was_taken(sender, receiver, message)

    def linked(self, worker: WorkerId) -> None:
        self.says(worker, "joins the head")
        self._faults.linked(worker)

    def says(self, who: str, what: str) -> None:
        if self._trace is not None:
            self._trace.says(who, what)

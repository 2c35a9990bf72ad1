"""Protocol stories: commands on lines that begin with `>`, and below each what it led to."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from godwit.protocol.machine import Step, Table
from godwit.types import WorkerId
from tests.protocol.checks import check_always, check_at_rest, settle
from tests.protocol.world import HEAD, LIMITS, MODEL, World


class Story:
    """A world that is told what to do in words, and what came of it in words."""

    def __init__(self) -> None:
        self.world = World()
        self.lines: list[str] = []
        self.world.tell = self._told
        self._commands: list[tuple[re.Pattern[str], Callable[..., object]]] = [
            (re.compile(pattern + "$"), act) for pattern, act in self._words().items()
        ]

    def _words(self) -> dict[str, Callable[..., object]]:
        world = self.world
        return {
            r"worker (\w+)": world.join,
            r"worker (\w+) without the model": lambda name: world.join(name, is_loaded=False),
            r"worker (\w+) with other weights": lambda name: world.join(name, digest="other weights"),
            r"start (\w+)": lambda name: world.start(name, 28, seed=3),
            r"cancel (\w+)": world.cancel,
            r"move (\w+) to (\w+)": world.move,
            r"move (\w+) to (\w+) by (\w+)": lambda name, to, method: world.move(name, to, method=method),
            r"move (\w+) to (\w+), in one round at most": self._move_in_one_round,
            r"step (\w+)": world.step,
            r"step (\w+) and deliver": self._step_and_deliver,
            r"the load at (\w+) ends": self._load,
            r"deliver all": world.deliver_all,
            r"deliver (\w+) to (\w+)": world.deliver,
            r"hold back (\w+) to (\w+)": world.hold_back,
            r"let go (\w+) to (\w+)": world.let_go,
            r"lose the next of (\w+) to (\w+)": lambda *link: world.queue(*link).popleft(),
            r"crash (\w+)": world.crash,
            r"cut (\w+) from (\w+)": world.cut,
            r"freeze (\w+) and (\w+)": world.freeze,
            r"thaw": world.thaw,
            r"the head gives (\w+) up": world.head_loses,
            r"(\w+) gives the head up": world.worker_loses_head,
            r"(\w+) returns": world.link,
            r"old messages of (\w+) arrive": world.replay_old,
            r"wait (\d+) s": lambda seconds: world.tick(float(seconds)),
            r"the scheduler restarts": world.control.restart_scheduler,
            r"rest": self._rest,
        }

    def do(self, command: str) -> list[str]:
        """What a command leads to, one line each."""
        self.lines = []
        for pattern, act in self._commands:
            if match := pattern.match(command):
                self.world.actor = HEAD
                act(*match.groups())
                check_always(self.world)
                return self.lines
        raise ValueError(f"there is no such command: {command}")

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Tell of every change of state in the three machines."""
        step = Table.step

        def traced_step(table: Table[Any], data: Any, event: object) -> Step[Any]:
            after, effects = step(table, data, event)
            if after.state is not data.state:
                self._told(self.world.actor, f"{table.name} is {after.state.value}, was {data.state.value}")
            return after, effects

        # The table is frozen and shared, so the telling goes around its method.
        Table.step = traced_step  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Table.step = step  # type: ignore[method-assign]

    def _told(self, who: str, what: str) -> None:
        self.lines.append(f"{who} {what}")

    def _load(self, name: str) -> None:
        self.world.actor = name
        self.world.nodes[WorkerId(name)].instances.finish_load(MODEL)

    def _move_in_one_round(self, request: str, to: str) -> None:
        self.world.move(request, to, replace(LIMITS, max_rounds=1))

    def _step_and_deliver(self, name: str) -> None:
        self.world.step(name)
        self.world.deliver_all()

    def _rest(self) -> None:
        """Let all come to rest, check that nothing leaks, and sum up."""
        settle(self.world)
        check_at_rest(self.world)
        self.lines = [
            f"{c.request}: {c.outcome} after {len(c.ids)} of the unmoved run's {len(c.expected_ids)} tokens"
            for c in self.world.clients.values()
        ]
        for one in self.world.records:
            ends = f"{one.source} to {one.destination}"
            self.lines.append(f"{one.request}: {one.method} {ends} {one.outcome}: {one.reason}")


def play(script: str) -> str:
    """The script with the transcript of what its commands lead to now."""
    story = Story()
    out: list[str] = []
    with story.traced():
        for line in script.splitlines():
            if line.startswith("> "):
                out.append(line)
                out.extend(f"  {told}" for told in story.do(line.removeprefix("> ")))
            elif not line.startswith("  "):
                out.append(line)
    return "\n".join(out) + "\n"

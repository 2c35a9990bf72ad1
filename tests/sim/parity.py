"""One description of a scene, which a real cluster and a simulated one play, and what came of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest

from msgspec import Struct

from godwit.protocol.entry import MoveRecord
from godwit.scheduling.eventlog import LogEntry
from tests.sim.traced import Change

_NUMBER = re.compile(r"\b\d+(\.\d+)?\b")
CONTEXT_TOKENS = 2048
CHUNK_TOKENS = 64
PATIENCE_S = 30.0
INSTANCE_BYTES = 1_000_000
RELATIVE, ABSOLUTE_S = 0.25, 0.25
"""How far apart times may be: by the larger of the two. This machine is shared, and a scheduler's delay of
some milliseconds a token is no news."""


# --- what is played -----------------------------------------------------------------------------------------


class Model(Struct, frozen=True):
    """A model of the fake engine with a checkpoint file."""

    name: str
    num_bytes: int


class Server(Struct, frozen=True):
    """A worker, the model on its device and others in its memory at the start; all are on its SSD.

    `dram_bytes` cache their files.
    """

    name: str
    device: str | None
    dram: tuple[str, ...] = ()
    dram_bytes: int = 100_000_000


class Ask(Struct, frozen=True):
    """A client asks; the answer has exactly so many tokens."""

    label: str
    model: str
    num_prompt: int
    num_output: int


class Has(Struct, frozen=True):
    """Wait until a client has so many tokens."""

    label: str
    num_tokens: int


class Move(Struct, frozen=True):
    """An operator asks for a request to be moved, and does not wait."""

    label: str
    to: str


class Moved(Struct, frozen=True):
    """Wait until so many moves and failovers are over, all in all."""

    num_moves: int


class Drain(Struct, frozen=True):
    """An operator has a worker emptied."""

    worker: str


class Kill(Struct, frozen=True):
    """A worker is gone, and the head sees its connection end."""

    worker: str


class Gone(Struct, frozen=True):
    """Wait until the head has lost a worker."""

    worker: str


class Over(Struct, frozen=True):
    """Wait until a client has its whole answer."""

    label: str


Step = Ask | Has | Move | Moved | Drain | Kill | Gone | Over


class Scene(Struct, frozen=True):
    """What there is and what happens, one step after the other. Speeds are those of the fake engine.

    A device has room for so many `instances`, which take the same for all models.
    """

    name: str
    models: tuple[Model, ...]
    servers: tuple[Server, ...]
    steps: tuple[Step, ...]
    policy: str = "live_migration"
    slots: int = 2
    decode_s: float = 0.04
    prefill_tps: float = 1000.0
    ssd_bytes_per_s: float = 600_000.0
    dram_bytes_per_s: float = 1_000_000.0
    instances: int = 1

    @property
    def device_bytes(self) -> int:
        """What a worker's device has."""
        return self.instances * INSTANCE_BYTES


# --- what came of it ----------------------------------------------------------------------------------------


class Client(Struct, frozen=True):
    """One request: its id, when it was asked and when each token came, by the clock of the log."""

    label: str
    request: str
    asked_s: float
    times_s: tuple[float, ...]


class Played(Struct, frozen=True):
    """What can be compared: decisions in order, each machine's changes of state, and seconds by name.

    `told` are the decisions with the numbers in their reasons.
    """

    told: tuple[str, ...]
    decisions: tuple[str, ...]
    changes: Mapping[str, tuple[tuple[str, ...], ...]]
    seconds: Mapping[str, float]


def played(
    log: Iterable[LogEntry],
    records: Iterable[MoveRecord],
    clients: Sequence[Client],
    changes: Iterable[Sequence[Change]],
) -> Played:
    """What came of a scene; `changes` are those of each process."""
    labels = {client.request: client.label for client in clients}
    entries = list(log)
    first = next(index for index, entry in enumerate(entries) if entry.kind == "RequestQueued")
    entries = entries[first:]
    seconds: dict[str, float] = {}
    for client in clients:
        seconds[f"{client.label}: until its first token"] = client.times_s[0] - client.asked_s
        seconds[f"{client.label}: until its last token"] = client.times_s[-1] - client.asked_s
    for entry in entries:
        if entry.kind == "Loaded" and entry.seconds is not None:
            seconds[f"{entry.model} is loaded on {entry.worker}"] = entry.seconds
    for number, record in enumerate(records, 1):
        what = f"move {number}, {labels[record.request]} to {record.destination} ({record.method})"
        seconds[what] = record.duration_s
        if record.pause_s is not None:
            seconds[f"pause of {what}"] = record.pause_s
    told = tuple(_told(entry, labels) for entry in entries)
    return Played(told, tuple(_NUMBER.sub("…", one) for one in told), _chains(changes), seconds)


def _told(entry: LogEntry, labels: Mapping[str, str]) -> str:
    place = entry.worker or ""
    if entry.destination is not None:
        place += f" to {entry.destination}"
    who = labels.get(entry.request or "", "")
    reason = entry.reason
    for request, label in labels.items():
        reason = reason.replace(request, label)
    return ", ".join(part for part in (entry.kind, who, entry.model, place, reason) if part)


def _chains(processes: Iterable[Sequence[Change]]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """By kind of machine: what each of them went through, in the order of their first changes."""
    chains: list[list[Change]] = []
    for changes in processes:
        ordered = sorted(changes, key=lambda one: one.number)
        chains += [list(chain) for _, chain in groupby(ordered, key=lambda one: one.number)]
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for chain in sorted(chains, key=lambda chain: chain[0].at_s):
        machine = chain[0].machine
        found[machine] = (*found.get(machine, ()), tuple(one.text for one in chain))
    return found


def differences(real: Played, simulated: Played) -> list[str]:
    """In words, what is not the same, but for times."""
    problems = []
    if real.decisions != simulated.decisions:
        problems += _different("decisions", real.told, simulated.told)
    for machine in sorted({*real.changes, *simulated.changes}):
        for number, (one, other) in enumerate(
            zip_longest(real.changes.get(machine, ()), simulated.changes.get(machine, ()), fillvalue=()), 1
        ):
            problems += _different(f"{machine} {number}", one, other)
    if {*real.seconds} != {*simulated.seconds}:
        problems.append(f"times are of {sorted(real.seconds)}, simulated of {sorted(simulated.seconds)}")
    return problems


def late(real: Played, simulated: Played) -> list[str]:
    """In words, which times are more than `RELATIVE` and `ABSOLUTE_S` apart."""
    return [
        f"{what}: {real_s:.3f} s, simulated {simulated_s:.3f} s"
        for what, real_s in real.seconds.items()
        for simulated_s in [simulated.seconds.get(what, real_s)]
        if abs(real_s - simulated_s) > max(RELATIVE * simulated_s, ABSOLUTE_S)
    ]


def _different(what: str, real: Sequence[str], simulated: Sequence[str]) -> list[str]:
    """Both side by side, where they are not the same."""
    if real == simulated:
        return []
    pairs = zip_longest(real, simulated, fillvalue="-")
    lines = [f"    {'=' if one == other else '!'} {one}   |   {other}" for one, other in pairs]
    return [f"{what} (real | simulated):", *lines]


def table(real: Played, simulated: Played) -> str:
    """All times side by side."""
    rows = [
        f"{what}: {real_s:.3f} s, simulated {simulated.seconds.get(what, float('nan')):.3f} s"
        for what, real_s in real.seconds.items()
    ]
    return "\n".join(rows)

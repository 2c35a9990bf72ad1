"""What each server did and for whom clients waited, as bars: from the head's log and token times. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median

from msgspec import Struct

from godwit.protocol.entry import MoveRecord
from godwit.scheduling.eventlog import LogEntry

STALL_OVER_ITL = 3.0
"""A gap between two tokens that is longer than so many median gaps is a stall."""

MIN_WAIT_S = 0.05
"""A wait shorter than this is how long a request takes to be placed."""


class Kind(StrEnum):
    """What a bar shows.

    The device of a server is loading a model, is decoding (the first prompt's computation included), or is
    resuming: computing, or taking, the KV of a request that it did not begin. A request waits until it is
    started on that server, or it has a server and stalls: its client sees no token.
    """

    LOAD = "load"
    DECODE = "decode"
    RESUME = "resume"
    WAIT = "wait"
    STALL = "stall"

    @property
    def is_of_device(self) -> bool:
        """Whether it is about the server's device; the others are about those who have to wait."""
        return self not in (Kind.WAIT, Kind.STALL)


class Bar(Struct, frozen=True):
    """What happened on or for `server`, for the request or model called `label`, in seconds."""

    server: str
    kind: Kind
    label: str
    start_s: float
    end_s: float


class Client(Struct, frozen=True):
    """One request as its client saw it: when it asked, and when each token came."""

    label: str
    model: str
    request: str
    asked_s: float
    times_s: tuple[float, ...]

    @property
    def gaps_s(self) -> list[float]:
        """The time between each token and the one before it."""
        return [later - earlier for earlier, later in pairwise(self.times_s)]


class _Stay(Struct, frozen=True):
    """One stay of a request on a server: its tokens [first, end), and when the server began with it."""

    server: str
    begun_s: float
    first: int
    end: int


def make_bars(
    log: Sequence[LogEntry], moves: Iterable[MoveRecord], clients: Sequence[Client], zero_s: float
) -> tuple[Bar, ...]:
    """All bars of a run, by start; times count from `zero_s` of the clock that log and clients share."""
    labels = {client.model: client.label for client in clients}
    done = [move for move in moves if move.outcome == "done"]
    bars = _loads(log, labels)
    for client in clients:
        stays = _stays(log, [move for move in done if move.request == client.request], client)
        bars += [*_work(client, stays), *_wait(client, stays), *_stalls(client, stays)]
    shifted = [
        Bar(bar.server, bar.kind, bar.label, round(bar.start_s - zero_s, 4), round(bar.end_s - zero_s, 4))
        for bar in bars
    ]
    return tuple(sorted(shifted, key=lambda bar: (bar.start_s, bar.server, bar.kind)))


def servers_of(log: Sequence[LogEntry], moves: Iterable[MoveRecord], client: Client) -> tuple[str, ...]:
    """The servers that a request was on, in order."""
    mine = [move for move in moves if move.outcome == "done" and move.request == client.request]
    return tuple(stay.server for stay in _stays(log, mine, client))


def _loads(log: Iterable[LogEntry], labels: Mapping[str, str]) -> list[Bar]:
    return [
        Bar(one.worker, Kind.LOAD, label, one.at_s - one.seconds, one.at_s)
        for one in log
        if one.kind == "Loaded" and one.worker and one.model and one.seconds is not None
        for label in [labels.get(one.model)]
        if label is not None
    ]


def _stays(log: Sequence[LogEntry], moves: Sequence[MoveRecord], client: Client) -> list[_Stay]:
    """The first stay begins with the request's first Start; each move or failover that is done begins one."""
    starts = [one for one in log if one.kind == "Start" and one.request == client.request and one.worker]
    if not starts or not client.times_s:
        return []
    firsts = [0, *(move.num_output for move in moves), len(client.times_s)]
    stays = [_Stay(starts[0].worker or "", starts[0].at_s, 0, firsts[1])]
    for number, move in enumerate(moves, 1):
        first, end = firsts[number], firsts[number + 1]
        if move.destination is None or first >= len(client.times_s):
            continue
        begun_s = _resumed_s(log, move, client, client.times_s[first])
        stays.append(_Stay(move.destination, begun_s, first, end))
    return stays


def _resumed_s(log: Iterable[LogEntry], move: MoveRecord, client: Client, first_token_s: float) -> float:
    """When the destination began with the request: once it was told, and had the model."""
    begun_s = [
        one.at_s
        for one in log
        if one.at_s <= first_token_s
        and (
            (one.kind == "Move" and one.request == move.request and one.destination == move.destination)
            or (one.kind == "Start" and one.request == move.request and one.worker == move.destination)
            or (one.kind == "Loaded" and one.model == client.model and one.worker == move.destination)
        )
    ]
    return max(begun_s, default=first_token_s)


def _work(client: Client, stays: Sequence[_Stay]) -> Iterable[Bar]:
    for number, stay in enumerate(stays):
        start_s = stay.begun_s
        if number:
            start_s = client.times_s[stay.first]
            yield Bar(stay.server, Kind.RESUME, client.label, stay.begun_s, start_s)
        yield Bar(stay.server, Kind.DECODE, client.label, start_s, client.times_s[stay.end - 1])


def _wait(client: Client, stays: Sequence[_Stay]) -> Iterable[Bar]:
    if stays and stays[0].begun_s - client.asked_s >= MIN_WAIT_S:
        yield Bar(stays[0].server, Kind.WAIT, client.label, client.asked_s, stays[0].begun_s)


def _stalls(client: Client, stays: Sequence[_Stay]) -> Iterable[Bar]:
    gaps_s = client.gaps_s
    if not gaps_s or not stays:
        return
    longest_s = STALL_OVER_ITL * median(gaps_s)
    for index, gap_s in enumerate(gaps_s, 1):
        if gap_s > longest_s:
            server = next(stay.server for stay in stays if stay.first <= index < stay.end)
            yield Bar(server, Kind.STALL, client.label, client.times_s[index - 1], client.times_s[index])

"""When servers are there: sessions and gaps, losses that go together, and replays of recorded ones. Pure.

Every draw comes from the caller's generator, so that one seed gives the same sessions again.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import gamma
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator

from godwit.sim.spec import Life, Stay

TOGETHER_S = 300.0
"""Losses within so many seconds count as one event (`share_together`, `lose_together`)."""

Key = TypeVar("Key")


class Change(Struct, frozen=True):
    """A line of a recorded trace: `node` was added or removed."""

    at_s: float
    is_added: bool
    node: str


class Count(Struct, frozen=True):
    """A line of a recorded trace: from then on there were so many."""

    at_s: float
    num_nodes: int


def draw_stays(rng: Generator, life: Life, until_s: float) -> tuple[Stay, ...]:
    """One server's sessions from 0 until `until_s`; the last one may end after that.

    Whether it is there at the beginning is drawn; if so, that session is a new one.
    """
    if life.scale_s <= 0 or life.shape <= 0 or life.mean_gap_s < 0:
        raise ValueError(f"scale and shape are above 0 and a gap at least 0, not {life}")
    mean_s = life.scale_s * gamma(1 + 1 / life.shape)
    is_there = rng.random() * (mean_s + life.mean_gap_s) < mean_s
    now_s = 0.0 if is_there else float(rng.exponential(life.mean_gap_s))
    stays = []
    while now_s < until_s:
        end_s = now_s + life.scale_s * float(rng.weibull(life.shape))
        stays.append(Stay(now_s, end_s, life.notice_s))
        now_s = end_s + float(rng.exponential(life.mean_gap_s))
    return tuple(stays)


def lose_together(
    rng: Generator, stays: Mapping[Key, Sequence[Stay]], probability: float
) -> dict[Key, tuple[Stay, ...]]:
    """The same sessions, where each loss takes another server with it, with this probability.

    That one is drawn from those that are there, goes within `TOGETHER_S`, takes nobody else with it and comes
    back when it would have anyway. Give it the servers of one kind. The share of losses that have company is
    then at least 2q/(1 + q): a probability of 0.25 gives 40 %, 0.55 gives 70 % (0.37 to 0.72 in the traces of
    ../shared/data/README.md).
    """
    changed = {key: list(own) for key, own in stays.items()}
    losses = [(stay.end_s, key, place) for key, own in stays.items() for place, stay in enumerate(own)]
    for loss_s, key, place in sorted(losses, key=lambda loss: loss[0]):
        is_cause = loss_s < float("inf") and changed[key][place].end_s == loss_s
        if not is_cause or rng.random() >= probability:
            continue
        at_s = loss_s + float(rng.uniform(0, TOGETHER_S))
        there = [
            (other, place)
            for other, own in changed.items()
            for place, stay in enumerate(own)
            if other != key and stay.start_s < loss_s and at_s < stay.end_s
        ]
        if there:
            taken, its_place = there[int(rng.integers(len(there)))]
            changed[taken][its_place] = replace(changed[taken][its_place], end_s=at_s)
    return {key: tuple(own) for key, own in changed.items()}


def share_together(stays: Iterable[Stay]) -> float:
    """The share of losses that have another one within `TOGETHER_S` before or after; nan without a loss."""
    ends_s = sorted(stay.end_s for stay in stays if stay.end_s < float("inf"))
    gaps_s = [later - earlier for earlier, later in pairwise(ends_s)]
    near = [gap_s <= TOGETHER_S for gap_s in gaps_s]
    pairs = list(zip([False, *near], [*near, False], strict=True)) if ends_s else []
    return sum(before or after for before, after in pairs) / len(pairs) if pairs else float("nan")


def replay_changes(changes: Iterable[Change]) -> dict[str, tuple[Stay, ...]]:
    """The sessions of every node of a trace, in order of time; ValueError where one comes or goes twice."""
    stays: dict[str, list[Stay]] = {}
    for change in changes:
        own = stays.setdefault(change.node, [])
        is_there = bool(own) and own[-1].end_s == float("inf")
        if is_there == change.is_added:
            raise ValueError(
                f"{change.node} is {'added' if is_there else 'removed'} twice at {change.at_s:g} s"
            )
        if change.is_added:
            own.append(Stay(change.at_s))
        else:
            own[-1] = replace(own[-1], end_s=change.at_s)
    return {node: tuple(own) for node, own in stays.items()}


def changes_of(rng: Generator, counts: Iterable[Count]) -> tuple[Change, ...]:
    """A trace of counts as nodes that come and go; which one goes is drawn, since counts do not say it."""
    changes: list[Change] = []
    there: list[str] = []
    num_seen = 0
    for count in counts:
        while len(there) < count.num_nodes:
            num_seen += 1
            there.append(f"node{num_seen}")
            changes.append(Change(count.at_s, True, there[-1]))
        while len(there) > count.num_nodes:
            node = there.pop(int(rng.integers(len(there))))
            changes.append(Change(count.at_s, False, node))
    return tuple(changes)


def cut(stays: Iterable[Stay], from_s: float, notice_s: float = 0.0) -> tuple[Stay, ...]:
    """What is left of the sessions when the time before `from_s` has gone, which is then 0."""
    return tuple(
        Stay(max(0.0, stay.start_s - from_s), stay.end_s - from_s, notice_s)
        for stay in stays
        if stay.end_s > from_s
    )

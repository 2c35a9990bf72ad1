"""What `godwit bench crossover` finds: cells, links, and how well `auto` chose. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median, mode

import numpy as np
from msgspec import Struct

from godwit.bench.traveller import ready_s
from godwit.costs.choice import AUTO
from godwit.costs.constants import Constant
from godwit.costs.crossover import Crossover, Method
from godwit.protocol.entry import MoveRecord

NAMES: Mapping[str, str] = {Method.KV: "transfer", Method.TOKENS: "recompute", Method.SPLIT: "split"}
"""What the report calls each method."""

COLUMNS = (*NAMES.values(), AUTO)
GOOD_REGRET = 1.15
CLOSE_FACTOR = 2.0

Moves = Mapping[str, Sequence[MoveRecord]]
"""The moves of one cell, by column."""


class Cell(Struct, frozen=True):
    """One context length over one link: median seconds until the destination could decode, by column.

    `link_mbit` None is a link that nothing shapes. Without "live" the source had stopped, so that these are
    pauses. `max_s` has the largest of the repeats, `predicted_s` what the head expected, `regret` the seconds
    of what `auto` chose over those of the fastest, `split_over_best` a split's over those of the other two.
    """

    link_mbit: float | None
    context_tokens: int
    transfer_s: float
    recompute_s: float
    split_s: float
    auto_method: str
    auto_s: float
    max_s: dict[str, float]
    predicted_s: dict[str, float]
    split_kv_tokens: int
    regret: float
    split_over_best: float
    live_transfer_s: float | None = None
    live_recompute_s: float | None = None
    live_split_s: float | None = None
    live_auto_s: float | None = None
    live_max_s: dict[str, float] = {}
    live_pause_ms: dict[str, float] = {}

    @property
    def is_close(self) -> bool:
        """Whether neither transfer nor recompute takes more than twice as long as the other."""
        slower, quicker = sorted((self.transfer_s, self.recompute_s), reverse=True)
        return slower <= CLOSE_FACTOR * quicker


class LinkConstants(Struct, frozen=True):
    """What the calibration moves over one link gave."""

    transfer_overhead_s: Constant
    recompute_overhead_s: Constant
    bandwidth_bytes_per_s: Constant
    prefill_tps: Constant
    kv_bytes_per_token: Constant


class LinkRow(Struct, frozen=True):
    """One link. A crossover of 0 tokens: transfer always wins; None: never.

    `effective_mbit` is what a plain TCP transfer got, or where none could be made what the moves' KV got.
    """

    link_mbit: float | None
    effective_mbit: float
    crossover_tokens_predicted: float | None
    transfer_wins_predicted: str
    crossover_tokens_measured: float | None
    transfer_wins_measured: str
    constants: LinkConstants


class Regret(Struct, frozen=True):
    """Over all cells: the chosen method's seconds over the fastest method's."""

    p50: float
    p95: float
    share_within_1_15: float


class Ratios(Struct, frozen=True):
    """Over some cells."""

    p50: float
    max: float
    n: int


class CrossoverReport(Struct, frozen=True):
    """All cells and links of one run; `problems` says what was tried again, and which cells there are not."""

    model: str
    engine: str
    links_are: str
    repeat: int
    live_repeat: int
    cells: tuple[Cell, ...]
    links: tuple[LinkRow, ...]
    auto_regret: Regret | None
    split_over_best: Ratios | None
    split_over_best_where_within_2x: Ratios | None
    problems: tuple[str, ...] = ()


def make_cell(link_mbit: float | None, context_tokens: int, stopped: Moves, live: Moves) -> Cell:
    """A cell from its moves: some for each column, `live` ones for each or none."""
    seconds = {name: median(ready_s(stopped[name])) for name in COLUMNS}
    while_live = {name: _round(median(ready_s(moves))) for name, moves in live.items()}
    # "split→tokens" is a split that had nothing to ship.
    chosen = NAMES[mode(record.method.rpartition("→")[2] for record in stopped[AUTO])]
    singles = [seconds[name] for name in NAMES.values()]
    return Cell(
        link_mbit,
        context_tokens,
        _round(seconds["transfer"]),
        _round(seconds["recompute"]),
        _round(seconds["split"]),
        chosen,
        _round(seconds[AUTO]),
        {name: _round(max(ready_s(stopped[name]))) for name in COLUMNS},
        {
            name: _round(predicted)
            for name in COLUMNS
            if (predicted := _predicted_s(stopped[name])) is not None
        },
        round(median(record.kv_tokens for record in stopped["split"])),
        _round(seconds[chosen] / min(singles)),
        _round(seconds["split"] / min(seconds["transfer"], seconds["recompute"])),
        while_live.get("transfer"),
        while_live.get("recompute"),
        while_live.get("split"),
        while_live.get(AUTO),
        {name: _round(max(ready_s(moves))) for name, moves in live.items()},
        {name: pause for name, moves in live.items() if (pause := _pause_ms(moves)) is not None},
    )


def make_link(
    link_mbit: float | None,
    transfer_mbit: float | None,
    constants: LinkConstants,
    predicted: Crossover,
    cells: Sequence[Cell],
) -> LinkRow:
    """A link's row from its calibration and its cells."""
    measured = measured_crossover([(c.context_tokens, c.transfer_s - c.recompute_s) for c in cells])
    by_moves = constants.bandwidth_bytes_per_s.value * 8 / 1e6
    return LinkRow(
        link_mbit,
        round(by_moves if transfer_mbit is None else transfer_mbit, 2),
        _tokens(predicted),
        predicted.wins.value,
        _tokens(measured) if measured is not None else None,
        measured.wins.value if measured is not None else "not measured",
        constants,
    )


def measured_crossover(excess: Sequence[tuple[float, float]]) -> Crossover | None:
    """Where transfer was the cheaper one, from (context, transfer's seconds - recompute's) at some contexts.

    Between two contexts the excess is a straight line, and beyond the first and the last its sign stays; None
    where there is no context.
    """
    points = sorted(excess)
    if not points:
        return None
    edges = [0.0] if points[0][1] < 0 else []
    for (start, at_start), (end, at_end) in pairwise(points):
        if (at_start < 0) != (at_end < 0):
            edges.append(start + (end - start) * at_start / (at_start - at_end))
    if points[-1][1] < 0:
        edges.append(math.inf)
    return Crossover(tuple(zip(edges[::2], edges[1::2], strict=True)))


def regret_of(cells: Sequence[Cell]) -> Regret | None:
    """The spread of the cells' regret; None without cells."""
    values = [cell.regret for cell in cells]
    if not values:
        return None
    p50, p95 = (float(value) for value in np.percentile(values, (50, 95)))
    within = sum(value <= GOOD_REGRET for value in values) / len(values)
    return Regret(_round(p50), _round(p95), _round(within))


def split_ratios(cells: Sequence[Cell]) -> Ratios | None:
    """How much longer than the better of the other two a split took; None without cells."""
    values = [cell.split_over_best for cell in cells]
    return Ratios(_round(median(values)), max(values), len(values)) if values else None


def _tokens(crossover: Crossover) -> float | None:
    return None if crossover.tokens == math.inf else round(crossover.tokens, 1)


def _predicted_s(records: Sequence[MoveRecord]) -> float | None:
    known = [r.predicted.ready_s for r in records if r.predicted and r.predicted.ready_s is not None]
    return median(known) if known else None


def _pause_ms(records: Sequence[MoveRecord]) -> float | None:
    known = [record.pause_s for record in records if record.pause_s is not None]
    return round(median(known) * 1e3, 1) if known else None


def _round(value: float) -> float:
    return round(value, 4)

"""`godwit bench crossover`: real moves by every method over real links, and how well `auto` chooses."""

import contextlib
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from datetime import date
from pathlib import Path
from secrets import token_hex

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from godwit.bench.crossover_fit import fit_constants, predicted_crossover, profile_of
from godwit.bench.crossover_plan import (
    START_S,
    Countdown,
    MeasuredMove,
    calibration_contexts,
    calibration_moves,
    cell_moves,
    nominal_link_s,
    nominal_s,
)
from godwit.bench.crossover_report import (
    NAMES,
    Cell,
    CrossoverReport,
    LinkRow,
    make_cell,
    make_link,
    regret_of,
    split_ratios,
)
from godwit.bench.links import WORKERS, Links
from godwit.bench.traveller import ROOM_TOKENS, Traveller
from godwit.config import (
    HeadSettings,
    ModelSettings,
    MoveSettings,
    SecuritySettings,
    Settings,
    WorkerSettings,
)
from godwit.costs.choice import AUTO
from godwit.costs.crossover import Method
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.profile import write_profile
from godwit.protocol.entry import MoveRecord

# Ample: 47 MB over 10 Mbit/s take 38 s, and KV may take half of a phase's time.
MOVE_TIMEOUT_S = 600.0
# A slow link has a move's KV in front of a ping's answer.
DEAD_AFTER_S = 30.0
SLOTS = 3
WARM_UP_TOKENS = 16


class CrossoverOptions(Struct, frozen=True):
    """What to measure. A link of None is one that nothing shapes; `live_repeat` counts live moves."""

    contexts: tuple[int, ...]
    links_mbit: tuple[float | None, ...]
    repeat: int
    live_repeat: int
    model: ModelSettings


async def run_crossover(
    options: CrossoverOptions, links: Links, progress: Callable[[str], None], logs: Path | None = None
) -> CrossoverReport:
    """Measure every context over every link; a cell that fails for good is left out and named."""
    options = replace(options, contexts=tuple(sorted(set(options.contexts))))
    with tempfile.TemporaryDirectory(prefix="godwit-crossover-") as folder:
        bench = CrossoverBench(options, links, progress, Path(folder) / "profile.json", logs)
        for mbit in options.links_mbit:
            try:
                await bench.measure_link(mbit)
            except GodwitError as error:
                # What has been measured so far may be the work of half an hour.
                if not bench.rows:
                    raise
                bench.problems.append(f"{link_name(mbit)} ended early: {error.message}")
    cells = bench.cells
    return CrossoverReport(
        options.model.name,
        options.model.engine,
        links.are,
        options.repeat,
        options.live_repeat,
        tuple(cells),
        tuple(bench.rows),
        regret_of(cells),
        split_ratios(cells),
        split_ratios([cell for cell in cells if cell.is_close]),
        tuple(bench.problems),
    )


class CrossoverBench:
    """Measures one link after the other, each with a head that knows what its calibration gave."""

    def __init__(
        self,
        options: CrossoverOptions,
        links: Links,
        progress: Callable[[str], None],
        profile: Path,
        logs: Path | None,
    ) -> None:
        self.cells: list[Cell] = []
        self.rows: list[LinkRow] = []
        self.problems: list[str] = []
        self._options = options
        self._links = links
        self._progress = progress
        self._profile = profile
        self._logs = logs
        self._settings = _settings(options, links.head_host)
        nominal = (options.contexts, options.repeat, options.live_repeat)
        total_s = sum(nominal_link_s(*nominal, mbit) for mbit in options.links_mbit)
        self._countdown = Countdown(total_s, time.monotonic())

    async def measure_link(self, mbit: float | None) -> None:
        """Calibrate the link, then measure its cells; adds to `cells`, `rows` and `problems`."""
        self._say(mbit, "starting two workers")
        self._links.shape(mbit)
        transfer_mbit = await self._links.transfer_mbit()
        async with self._travelling(self._settings) as traveller:
            records = [
                await self._measure(traveller, mbit, move, "calibration")
                for move in calibration_moves(self._options.contexts)
            ]
        model = self._options.model.name
        on = f"{platform.machine()}, {platform.node()}, {date.today()}, by moves over this link"
        constants = fit_constants(records, on)
        profile = profile_of(constants, model, platform.machine(), str(date.today()))
        write_profile(self._profile, profile)
        knowing = replace(self._settings, moves=replace(self._settings.moves, profile=str(self._profile)))
        cells = []
        async with self._travelling(knowing) as traveller:
            for context in self._options.contexts:
                if (cell := await self._cell(traveller, mbit, context)) is not None:
                    cells.append(cell)
        self.cells += cells
        predicted = predicted_crossover(profile, model)
        self.rows.append(make_link(mbit, transfer_mbit, constants, predicted, cells))

    async def _cell(self, traveller: Traveller, mbit: float | None, context: int) -> Cell | None:
        """A cell; without one of the live columns where its moves failed, None where a stopped one did."""
        moves = cell_moves(context, self._options.repeat, self._options.live_repeat)
        measured: dict[bool, dict[str, list[MoveRecord]]] = {False: {}, True: {}}
        for number, move in enumerate(moves, 1):
            column = AUTO if move.method == AUTO else NAMES[move.method]
            try:
                record = await self._measure(traveller, mbit, move, f"{number} of {len(moves)}")
            except GodwitError as error:
                where = f"for {context} tokens over {link_name(mbit)}"
                self.problems.append(f"no {'live ' * move.live}{column} {where}: {error.message}")
                if not move.live:
                    return None
            else:
                measured[move.live].setdefault(column, []).append(record)
        return make_cell(mbit, context, measured[False], measured[True])

    async def _measure(
        self, traveller: Traveller, mbit: float | None, move: MeasuredMove, which: str
    ) -> MoveRecord:
        what = "live" if move.live else "stopped"
        self._say(mbit, f"{move.context_tokens} tokens by {move.method}, {what}, {which}")
        try:
            return await traveller.move(move.context_tokens, move.method, live=move.live)
        finally:
            self._countdown.done(nominal_s(move, mbit))

    @contextlib.asynccontextmanager
    async def _travelling(self, settings: Settings) -> AsyncIterator[Traveller]:
        """A cluster on the link as it is shaped, warmed up in both directions."""
        security = settings.security
        headers = {"Authorization": f"Bearer {security.api_keys[0]}"}
        name = self._options.model.name
        sites = self._links.sites()
        async with (
            LocalCluster(settings, len(WORKERS), logs=self._logs, sites=sites) as cluster,
            aiohttp.ClientSession(headers=headers) as session,
            Traveller(cluster, session, name, self.problems.append) as traveller,
        ):
            for method in (Method.KV, Method.TOKENS, Method.KV, Method.TOKENS):
                await traveller.move(WARM_UP_TOKENS, method, live=False)
            self._countdown.done(START_S)
            yield traveller

    def _say(self, mbit: float | None, what: str) -> None:
        self._progress(f"{link_name(mbit)}: {what}; {self._countdown.left(time.monotonic())}")


def link_name(mbit: float | None) -> str:
    """A link for people."""
    return "unshaped" if mbit is None else f"{mbit:g} Mbit/s"


def _settings(options: CrossoverOptions, head_host: str) -> Settings:
    """For a head that others can reach: with keys that nobody else has."""
    longest = max((*options.contexts, *calibration_contexts(options.contexts)))
    return Settings(
        head=HeadSettings(host=head_host, port=0, dead_after_s=DEAD_AFTER_S),
        moves=MoveSettings(method="tokens", timeout_s=MOVE_TIMEOUT_S),
        worker=WorkerSettings(
            slots=SLOTS, context_tokens=longest + ROOM_TOKENS + 64, dead_after_s=DEAD_AFTER_S
        ),
        security=SecuritySettings(
            api_keys=(token_hex(16),), join_token=token_hex(16), admin_key=token_hex(16)
        ),
        models=(options.model,),
    )

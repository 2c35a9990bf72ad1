"""`godwit demo`: a real model's stream moved between two workers, then surviving the death of one."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median

import aiohttp
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from godwit.config import HeadSettings, ModelSettings, Settings
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.protocol.entry import MoveRecord
from godwit.streams import TimedStream, follow

PROMPT = "Tell me a long story about a bird that flies from Alaska to New Zealand without landing."
MIN_TOKENS, MAX_TOKENS = 360, 420
FIRST_MOVE_AT, SECOND_MOVE_AT, KILL_AT = 60, 170, 270


class DemoMove(Struct, frozen=True):
    """One move as the client saw it; `rounds` are (tokens, seconds); pauses are None without a next token."""

    kind: str
    method: str
    source: str
    destination: str | None
    at_token: int
    rounds: tuple[tuple[int, float], ...]
    gap_tokens: int | None
    pause_ms: float | None
    pause_over_itl: float | None


class DemoReport(Struct, frozen=True):
    """What the demo saw; `ok` means that nothing was missing or doubled and the stream ended well."""

    ok: bool
    tokens_delivered: int
    tokens_missing: int
    tokens_doubled: int
    is_identical_to_unmoved: bool
    finish_reason: str | None
    error: str | None
    median_itl_ms: float
    moves: tuple[DemoMove, ...]


class _Script:
    """Watches the stream and, at its token counts, moves it twice and kills its worker."""

    def __init__(
        self, cluster: LocalCluster, say: Callable[[str], None], show: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._show = show
        self._steps = [(FIRST_MOVE_AT, self._move), (SECOND_MOVE_AT, self._move), (KILL_AT, self._kill)]
        self._acting: asyncio.Task[None] | None = None

    def on_token(self, stream: TimedStream, text: str) -> bool:
        """Show the text; start the next step when its time has come and the step before is over."""
        self._show(text)
        is_free = self._acting is None or self._acting.done()
        if self._steps and is_free and len(stream.ids) >= self._steps[0][0]:
            _, act = self._steps.pop(0)
            self._acting = asyncio.ensure_future(act(stream.request))
        return True

    async def finish(self) -> None:
        """Wait for a step that is under way; raises what went wrong in it."""
        if self._acting is not None:
            await self._acting

    async def _owner(self, request: str) -> str:
        if (owner := await self._cluster.admin.owner(request)) is None:
            raise GodwitError("the demo's request has ended before its time; run the demo again")
        return owner

    async def _move(self, request: str) -> None:
        source = await self._owner(request)
        destination = next(name for name in self._cluster.names if name != source)
        self._say(f"moving {source} → {destination}")
        await self._cluster.admin.migrate(request, destination)

    async def _kill(self, request: str) -> None:
        owner = await self._owner(request)
        self._say(f"SIGKILL {owner} (pid {self._cluster.workers[owner].pid})")
        await self._cluster.kill(owner)


def _settings() -> Settings:
    # Any free port: a head of the user's own may be running.
    return Settings(head=HeadSettings(port=0), models=(ModelSettings(name="smollm2-135m"),))


async def run_demo(
    say: Callable[[str], None],
    show: Callable[[str], None],
    waiting: Callable[[list[str]], None],
    logs: Path | None,
) -> DemoReport:
    """Run the whole demo; `say` gets what happens, `show` the text as it comes."""
    async with LocalCluster(_settings(), 2, logs=logs, on_wait=waiting) as cluster:
        say(f"a head on {cluster.url}, workers {', '.join(cluster.names)} (output in {cluster.logs})")
        body = {
            "model": cluster.settings.models[0].name,
            "messages": [{"role": "user", "content": PROMPT}],
            "min_tokens": MIN_TOKENS,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.7,
            "seed": 1,
        }
        async with aiohttp.ClientSession() as session:
            moved, script = TimedStream(), _Script(cluster, say, show)
            await follow(session, cluster.url, body, moved, script.on_token)
            await script.finish()
            show("\n")
            say("the same request once more, undisturbed, to compare")
            unmoved = await follow(session, cluster.url, body, TimedStream())
        records = [move for move in (await cluster.admin.status()).moves if move.request == moved.request]
    return _report(moved, unmoved, records)


def _report(moved: TimedStream, unmoved: TimedStream, records: list[MoveRecord]) -> DemoReport:
    itl_s = median(unmoved.gaps_s())
    moves = tuple(_move(record, moved, itl_s) for record in records)
    counted = moved.completion_tokens or 0
    missing, doubled = max(0, counted - len(moved.ids)), max(0, len(moved.ids) - counted)
    kinds = [move.kind for move, record in zip(moves, records, strict=True) if record.outcome == "done"]
    has_ended_well = moved.error is None and moved.finish_reason in ("stop", "length")
    ok = has_ended_well and not missing and not doubled and kinds == ["migration", "migration", "failover"]
    return DemoReport(
        ok=ok,
        tokens_delivered=len(moved.ids),
        tokens_missing=missing,
        tokens_doubled=doubled,
        is_identical_to_unmoved=moved.ids == unmoved.ids,
        finish_reason=moved.finish_reason,
        error=moved.error,
        median_itl_ms=round(itl_s * 1e3, 2),
        moves=moves,
    )


def _move(record: MoveRecord, stream: TimedStream, itl_s: float) -> DemoMove:
    at = record.num_output
    pause_s = stream.times_s[at] - stream.times_s[at - 1] if 0 < at < len(stream.times_s) else None
    return DemoMove(
        kind="failover" if record.method == "failover" else "migration",
        method="tokens" if record.method == "failover" else record.method,
        source=record.source,
        destination=record.destination,
        at_token=at,
        rounds=tuple((one.tokens, round(one.seconds, 4)) for one in record.rounds),
        gap_tokens=record.gap_tokens if record.method != "failover" else None,
        pause_ms=None if pause_s is None else round(pause_s * 1e3, 1),
        pause_over_itl=None if pause_s is None else round(pause_s / itl_s, 2),
    )


def show_report(console: Console, report: DemoReport) -> None:
    """The timeline as a table, and the verdict."""
    table = Table(title="What happened", title_justify="left")
    for name in ("what", "from → to", "at token", "rounds (tokens in ms)", "gap", "pause", "pause / ITL"):
        table.add_column(name)
    for move in report.moves:
        rounds = ", ".join(f"{tokens} in {seconds * 1e3:.0f}" for tokens, seconds in move.rounds)
        table.add_row(
            move.kind if move.kind == "failover" else f"{move.kind} ({move.method})",
            f"{move.source} → {move.destination}",
            str(move.at_token),
            rounds or "recomputed from the journal",
            "" if move.gap_tokens is None else str(move.gap_tokens),
            "" if move.pause_ms is None else f"{move.pause_ms:.0f} ms",
            "" if move.pause_over_itl is None else f"{move.pause_over_itl:.1f} ×",
        )
    console.print(table)
    same = "identical to" if report.is_identical_to_unmoved else "not identical to"
    console.print(
        f"{report.tokens_delivered} tokens delivered, {report.tokens_missing} missing, "
        f"{report.tokens_doubled} doubled; median ITL {report.median_itl_ms:.1f} ms; "
        f"{same} the same request undisturbed; finish_reason {report.finish_reason}"
    )
    if report.error is not None:
        console.print(f"[red]the stream failed:[/red] {escape(report.error)}")
    console.print("[green]ok[/green]" if report.ok else "[red]not ok[/red]")


async def demo(as_json: bool, logs: Path | None) -> DemoReport:
    """Run the demo for a person, or (as JSON) for a program."""
    console = Console(stderr=as_json)
    with console.status("starting") as status:

        def waiting(missing: list[str]) -> None:
            status.update(f"{' and '.join(missing)} loading the model (the first time it is converted, once)")

        def say(text: str) -> None:
            status.stop()
            console.print(f"\n[bold cyan]{escape(text)}[/bold cyan]")

        def show(text: str) -> None:
            if not as_json:
                console.out(text, end="", highlight=False)

        report = await run_demo(say, show, waiting, logs)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        show_report(console, report)
    return report

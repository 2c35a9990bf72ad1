"""What a head still knows after a restart: models, pins, workers' sessions, what was learnt; in SQLite."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Struct

from godwit.config import ModelSettings
from godwit.costs.choice import Observation
from godwit.errors import ConfigError, UnavailableError
from godwit.types import LoadRecord, ModelName, WorkerId

VERSION = 1
HEAD_STOPPED = "the head stopped"
"""Why a session ended that was open when the head did."""
HEAD_STOPS = "the head stops"
"""Why a session ends that a head ends which stops in good order."""

MAX_PENDING = 10_000
MAX_OBSERVATIONS = 4096
MAX_SESSIONS = 20_000
_PRUNE_EVERY = 64
_APPLICATION_ID = 0x676F6477
_SCHEMA = (
    "CREATE TABLE added (model TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE pins (model TEXT PRIMARY KEY)",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, worker TEXT NOT NULL, incarnation INTEGER NOT NULL,"
    " joined_at REAL NOT NULL, left_at REAL, reason TEXT)",
    "CREATE INDEX sessions_open ON sessions (worker) WHERE left_at IS NULL",
    "CREATE TABLE observations (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, at REAL NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE INDEX observations_kind ON observations (kind, id)",
    "CREATE TABLE alive (id INTEGER PRIMARY KEY CHECK (id = 1), at REAL NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_STILL_ALIVE = "INSERT INTO alive VALUES (1, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)"
_LAST_KNOWN = (
    "SELECT max(at) FROM (SELECT at FROM alive UNION ALL SELECT max(at) FROM observations"
    " UNION ALL SELECT max(joined_at) FROM sessions UNION ALL SELECT max(left_at) FROM sessions)"
)
_log = structlog.get_logger(__name__)
T = TypeVar("T")


class Session(Struct, frozen=True):
    """One stay of a worker. Times are Unix time in seconds; `left_at` None: it is there still."""

    worker: WorkerId
    incarnation: int
    joined_at: float
    left_at: float | None = None
    reason: str | None = None


class LoadSeen(Struct, frozen=True):
    """A load that is over, as `StartupTimes.learn_load` takes it."""

    worker: WorkerId
    record: LoadRecord


class ResumeSeen(Struct, frozen=True):
    """A move to `worker`, as `StartupTimes.learn_resume` takes it."""

    worker: WorkerId
    model: ModelName
    context_tokens: int
    seconds: float


class TokensSeen(Struct, frozen=True):
    """What a request drew, as `StartupTimes.learn_tokens` takes it."""

    worker: WorkerId
    model: ModelName
    num_tokens: int
    seconds: float


class PrefillSeen(Struct, frozen=True):
    """What a request waited for its first token, as `StartupTimes.learn_prefill` takes it."""

    worker: WorkerId
    model: ModelName
    context_tokens: int
    seconds: float


class OutputSeen(Struct, frozen=True):
    """An output that came to its end, as `StartupTimes.learn_output` takes it."""

    model: ModelName
    num_output: int
    expected_tokens: int | None = None


Seen = LoadSeen | ResumeSeen | TokensSeen | PrefillSeen | OutputSeen | Observation


class Store:
    """The head's file, or (None) as much in memory. Calls come from one thread, and writing never waits.

    A thread of its own writes, each event as a transaction, in order: killed at any instant, the file has all
    events up to one of them. More than `MAX_PENDING` that wait are dropped, and logged, as is what cannot be
    written. The file belongs to one head at a time. Reading waits for what was written before.
    """

    def __init__(self, path: Path | None, now: Callable[[], float] = time.time) -> None:
        """ConfigError where the file cannot be used; sessions that were open in it are ended."""
        self._path = path
        self._now = now
        self._is_closed = False
        self._room = Semaphore(MAX_PENDING)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._num_writes = 0
        self._problem: str | None = None
        try:
            self._connection = self._writer.submit(_open, path, now()).result()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"head.store: {path} cannot be used: {_advice(error)}") from error

    def close(self) -> None:
        """Write what waits, and close the file; what is written later is ignored."""
        if self._is_closed:
            return
        self.alive()
        self._is_closed = True
        self._writer.submit(self._connection.close).result()
        self._writer.shutdown()

    # --- writing --------------------------------------------------------------------------------------------

    def alive(self) -> None:
        """The head runs still: call it every minute or so, to know later when it stopped."""
        self._write(_STILL_ALIVE, (self._now(),))

    def add_model(self, model: ModelSettings) -> None:
        """A model was added to all workers, those to come included."""
        self._write("INSERT OR REPLACE INTO added VALUES (?, ?)", (model.name, _json(model)))

    def remove_model(self, model: str) -> None:
        """A model that was added is so no more."""
        self._write("DELETE FROM added WHERE model = ?", (model,))

    def pin(self, model: str, *, is_pinned: bool) -> None:
        """A model was pinned, or is not any more."""
        self._write(
            "INSERT OR IGNORE INTO pins VALUES (?)" if is_pinned else "DELETE FROM pins WHERE model = ?",
            (model,),
        )

    def joined(self, worker: WorkerId, incarnation: int) -> None:
        """A worker has connected."""
        self._write(
            "INSERT INTO sessions (worker, incarnation, joined_at) VALUES (?, ?, ?)",
            (worker, incarnation, self._now()),
        )

    def left(self, worker: WorkerId, reason: str) -> None:
        """A worker is gone."""
        self._write(
            "UPDATE sessions SET left_at = ?, reason = ? WHERE worker = ? AND left_at IS NULL",
            (self._now(), reason, worker),
        )

    def observe(self, seen: Seen) -> None:
        """Something happened that teaches; of each kind the latest `MAX_OBSERVATIONS` are kept."""
        self._write(
            "INSERT INTO observations (kind, at, body) VALUES (?, ?, ?)",
            (type(seen).__name__, self._now(), _json(seen)),
        )

    def written(self) -> "Future[None]":
        """Ends when what was written before is in the file; UnavailableError where the last of it is not."""
        return self._writer.submit(self._check)

    def _check(self) -> None:
        if self._problem is not None:
            raise UnavailableError(
                f"in force until the head ends, but head.store has it not: {self._problem}"
            )

    # --- reading --------------------------------------------------------------------------------------------

    def added(self) -> list[ModelSettings]:
        """The models that were added, by name; what cannot be read (any more) is left out."""
        return _decoded(self._read("SELECT body FROM added ORDER BY model"), ModelSettings)

    def pins(self) -> set[ModelName]:
        """The models that are pinned."""
        return {ModelName(model) for (model,) in self._read("SELECT model FROM pins")}

    def sessions(self) -> list[Session]:
        """The workers' sessions, oldest first."""
        columns = ", ".join(Session.__struct_fields__)
        return [Session(*row) for row in self._read(f"SELECT {columns} FROM sessions ORDER BY id")]

    def latest(self, kind: type[T], limit: int = 512) -> list[T]:
        """The latest observations of a kind, oldest first; what cannot be read (any more) is left out."""
        query = "SELECT body FROM observations WHERE kind = ? ORDER BY id DESC LIMIT ?"
        return _decoded(self._read(query, (kind.__name__, limit))[::-1], kind)

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        if self._is_closed:
            return
        if not self._room.acquire(blocking=False):
            _log.error("not stored: too much waits for head.store", statement=statement)
            return
        self._writer.submit(self._perform, statement, values)

    def _perform(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._connection.execute(statement, values)
            self._num_writes += 1
            self._problem = None
            if self._num_writes % _PRUNE_EVERY == 0:
                _prune(self._connection)
        except sqlite3.Error as error:
            self._problem = _advice(error)
            _log.error("not stored", statement=statement, reason=self._problem)
        finally:
            self._room.release()

    def _read(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._writer.submit(lambda: self._connection.execute(query, values).fetchall()).result()
        except sqlite3.Error as error:
            raise ConfigError(f"head.store: {self._path} cannot be read: {_advice(error)}") from error


def _open(path: Path | None, now: float) -> sqlite3.Connection:
    if path is not None and path.parent.is_dir() and not path.exists():
        # What is added may name hosts and paths, which are nobody else's business.
        path.touch(mode=0o600)
    # Without an isolation level each statement is a transaction.
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=1.0)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        # With a WAL this loses the latest events with the machine's power, but none with the process.
        connection.execute("PRAGMA synchronous = NORMAL")
        _check_version(connection, path)
        (last_known,) = connection.execute(_LAST_KNOWN).fetchone()
        connection.execute(
            "UPDATE sessions SET left_at = max(joined_at, ?), reason = ? WHERE left_at IS NULL",
            (last_known, HEAD_STOPPED),
        )
        connection.execute(_STILL_ALIVE, (now,))
    except (sqlite3.Error, ConfigError):
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path | None) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if num_tables == version == application == 0:
        connection.execute("BEGIN")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
    elif application != _APPLICATION_ID:
        raise ConfigError(f"head.store: {path} is the database of another program; name another file")
    elif version > VERSION:
        raise ConfigError(
            f"head.store: {path} was written by a newer Godwit (format {version}, this one knows {VERSION}); "
            "run that one, or name another file"
        )


def _prune(connection: sqlite3.Connection) -> None:
    for (kind,) in connection.execute("SELECT DISTINCT kind FROM observations").fetchall():
        connection.execute(
            "DELETE FROM observations WHERE kind = ?1 AND id <= (SELECT id FROM observations WHERE kind = ?1"
            " ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            (kind, MAX_OBSERVATIONS),
        )
    connection.execute(
        "DELETE FROM sessions WHERE left_at IS NOT NULL"
        " AND id <= (SELECT id FROM sessions ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (MAX_SESSIONS,),
    )


def _decoded(rows: Sequence[tuple[Any, ...]], kind: type[T]) -> list[T]:
    found: list[T] = []
    for (body,) in rows:
        try:
            found.append(msgspec.json.decode(body, type=kind))
        except msgspec.MsgspecError as error:
            _log.warning("head.store has what cannot be read", kind=kind.__name__, reason=str(error))
    return found


def _advice(error: Exception) -> str:
    """SQLite's own words, and what to do about them."""
    match getattr(error, "sqlite_errorname", ""):
        case "SQLITE_BUSY":
            what = "another head uses it; stop that one, or name another file"
        case "SQLITE_NOTADB" | "SQLITE_CORRUPT":
            what = "it is no SQLite database, or a damaged one; move it away, or name another file"
        case "SQLITE_FULL":
            what = "the disk is full; make room"
        case _:
            what = "name a file in a folder that exists and that the head may write to"
    return f"{error}: {what}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

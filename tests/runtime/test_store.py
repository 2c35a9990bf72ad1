"""The head's file: what it keeps, what a kill leaves of it, and which files it refuses."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from godwit.config import ModelSettings
from godwit.errors import ConfigError
from godwit.runtime import store as module
from godwit.runtime.store import LoadSeen, Session, Store, TokensSeen
from godwit.types import LoadRecord, ModelName, Tier, WorkerId

W1, W2 = WorkerId("w1"), WorkerId("w2")
M = ModelName("m")
LOAD = LoadSeen(W1, LoadRecord(Tier.SSD, 10**9, 0.5, 0.2))

WRITE_FOREVER = """
import sys
from pathlib import Path
from godwit.runtime.store import Store, TokensSeen
store = Store(Path(sys.argv[1]))
store.joined("w1", 1)
for number in range(10**9):
    store.observe(TokensSeen("w1", "m", number + 1, 1.0))
    if number % 1000 == 999:
        store.sessions()  # waits for what is pending
        print("writing", flush=True)
"""


class Clock:
    """Wall-clock time that passes when told."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "head.sqlite"


@pytest.fixture
def reopened(path: Path, clock: Clock) -> Iterator[Callable[[], Store]]:
    """The store of the same file, after its former user has closed it."""
    opened: list[Store] = []

    def reopen() -> Store:
        for store in opened:
            store.close()
        opened.append(Store(path, clock))
        return opened[-1]

    yield reopen
    for store in opened:
        store.close()


def test_what_is_written_is_there_after_a_restart(reopened: Callable[[], Store]) -> None:
    model = ModelSettings(name="org/model:7b", url="https://host/x.gguf", sha256="0" * 64)
    fake = ModelSettings(name="a", engine="fake", options={"decode_s": 0.1, "x": True})
    store = reopened()
    store.add_model(model)
    store.add_model(fake)
    store.pin("a", is_pinned=True)
    store.pin("b", is_pinned=True)
    store.pin("b", is_pinned=True)
    store = reopened()
    assert store.added() == [fake, model]
    assert store.pins() == {"a", "b"}
    store.remove_model("a")
    store.pin("b", is_pinned=False)
    store = reopened()
    assert store.added() == [model]
    assert store.pins() == {"a"}


def test_without_a_file_it_keeps_the_same_in_memory() -> None:
    with closing(Store(None)) as store:
        store.add_model(ModelSettings(name="a", engine="fake"))
        store.joined(W1, 7)
        assert [one.name for one in store.added()] == ["a"]
        assert [one.incarnation for one in store.sessions()] == [7]


def test_sessions_have_their_times_and_reasons(reopened: Callable[[], Store], clock: Clock) -> None:
    store = reopened()
    store.joined(W1, 1)
    clock.at = 1010.0
    store.joined(W2, 5)
    store.left(W1, "its connection was lost")
    clock.at = 1020.0
    store.joined(W1, 2)
    assert store.sessions() == [
        Session(W1, 1, 1000.0, 1010.0, "its connection was lost"),
        Session(W2, 5, 1010.0),
        Session(W1, 2, 1020.0),
    ]


def test_a_crash_ends_sessions_at_the_last_time_that_is_known(path: Path, clock: Clock) -> None:
    with closing(Store(path, clock)) as store:
        store.joined(W1, 1)
        clock.at = 1060.0
        store.alive()
        store.sessions()  # waits until it is written
        copy = path.with_name("crashed.sqlite")
        for suffix in ("", "-wal"):
            copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    clock.at = 9000.0
    with closing(Store(copy, clock)) as store:
        assert store.sessions() == [Session(W1, 1, 1000.0, 1060.0, "the head stopped")]


def test_the_latest_observations_are_kept_and_given_oldest_first(
    reopened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OBSERVATIONS", 10)
    store = reopened()
    store.observe(LOAD)
    for number in range(1, 201):
        store.observe(TokensSeen(W1, M, number, 1.0))
    assert [seen.num_tokens for seen in store.latest(TokensSeen, 3)] == [198, 199, 200]
    assert 10 <= len(store.latest(TokensSeen, 1000)) < 10 + 64
    assert store.latest(LoadSeen) == [LOAD]


def test_old_sessions_are_forgotten_but_not_open_ones(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 5)
    with closing(Store(None, clock)) as store:
        store.joined(W2, 1)
        for incarnation in range(100):
            store.joined(W1, incarnation)
            store.left(W1, "left on purpose")
        sessions = store.sessions()
    assert sessions[0] == Session(W2, 1, 1000.0)
    assert len(sessions) < 1 + 5 + 64


def test_killed_while_it_writes_it_leaves_a_whole_file(path: Path) -> None:
    command = [sys.executable, "-c", WRITE_FOREVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGKILL)
    with closing(Store(path)) as store:
        seen = store.latest(TokensSeen, 10**6)
        numbers = [one.num_tokens for one in seen]
        assert len(numbers) >= 1000
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        (session,) = store.sessions()
        assert session.reason == "the head stopped"
        assert session.left_at is not None
        assert session.left_at >= session.joined_at
        store.observe(TokensSeen(W1, M, 77, 1.0))
        assert store.latest(TokensSeen, 1)[0].num_tokens == 77


def test_writing_neither_waits_nor_grows_without_bound(
    monkeypatch: pytest.MonkeyPatch, path: Path, clock: Clock
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 5)
    with closing(Store(path, clock)) as store:
        store._writer.submit(store._room.acquire)  # the writer is one short ...
        store.sessions()
        store.pin("a", is_pinned=True)
        store.pins()
        for _ in range(4):
            store._room.acquire()  # ... and then waits for a disk that takes nothing more
        store.pin("b", is_pinned=True)
        assert store.pins() == {"a"}
        store._room.release()
        store.pin("c", is_pinned=True)
        assert store.pins() == {"a", "c"}


def test_what_is_written_after_the_end_is_ignored(path: Path) -> None:
    store = Store(path)
    store.close()
    store.left(W1, "late")
    store.close()


def test_a_file_of_a_newer_godwit_is_refused(path: Path, reopened: Callable[[], Store]) -> None:
    reopened().close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match=r"head\.store: .* newer Godwit .*run that one, or name another"):
        Store(path)


def test_the_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (id)")
    with pytest.raises(ConfigError, match=r"head\.store: .* of another program"):
        Store(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_text("these are my notes, and nothing else " * 100)
    with pytest.raises(ConfigError, match=r"head\.store: .* no SQLite database"):
        Store(path)


@pytest.mark.parametrize("name", ["no/such/folder/x.sqlite", "."])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"head\.store: .* a folder that exists"):
        Store(tmp_path / name)


def test_a_file_belongs_to_one_head_at_a_time(path: Path) -> None:
    with closing(Store(path)), pytest.raises(ConfigError, match="another head uses it"):
        Store(path)


def test_nobody_else_may_read_it(path: Path, reopened: Callable[[], Store]) -> None:
    reopened()
    assert path.stat().st_mode & 0o077 == 0


def test_what_cannot_be_read_any_more_is_left_out(path: Path, reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.observe(LOAD)
    store.add_model(ModelSettings(name="a", engine="fake"))
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO observations (kind, at, body) VALUES ('LoadSeen', 0, '{}')")
        connection.execute("UPDATE added SET body = 'x'")
    store = reopened()
    assert store.latest(LoadSeen) == [LOAD]
    assert store.added() == []

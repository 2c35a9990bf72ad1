"""Public traces and lengths, read from the folder GODWIT_DATA; each one's own README says what it is.

All readers raise ConfigError where a file is missing or is not what it should be.
"""

import csv
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from godwit.errors import ConfigError
from godwit.sim.sessions import Change, Count
from godwit.sim.workload import Floats, Ints

# Beside the project, of which this file is src/godwit/….
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"

T = TypeVar("T")


class Trace(NamedTuple):
    """Requests as they came: seconds since the first, and a row (prompt tokens, output tokens) for each."""

    times_s: Floats
    tokens: Ints


def data_folder() -> Path:
    """Where the data sets are: GODWIT_DATA, or shared/data beside the project."""
    return Path(os.environ.get("GODWIT_DATA") or BESIDE)


def read_file(path: Path) -> bytes:
    """A data set's file; ConfigError says what to do where it is not there."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the data set is not there: {path} ({error.strerror}); set GODWIT_DATA to the folder with the "
            "data sets (shared/data beside the project)"
        ) from error


def gsm8k(data: Path) -> Ints:
    """Lengths of GSM8K's test split: prompts, and answers that people wrote."""
    return _lengths(data / "gsm8k" / "lengths_cl100k.csv", "prompt_tokens", "answer_tokens")


def sharegpt(data: Path) -> Ints:
    """Lengths of the first turn of ShareGPT's conversations, without empty ones."""
    return _lengths(data / "sharegpt_lengths" / "first_turn_pairs.csv", "prompt_tokens", "output_tokens")


def sharegpt_turns(data: Path) -> Ints:
    """Lengths of all turns, where a prompt is all that was said before and the new message."""
    path = data / "sharegpt_lengths" / "turn_lengths.csv"
    rows = _columns(path, "conv", "user_tokens", "assistant_tokens")
    tokens, said = [], 0
    for number, (conversation, asked, answered) in enumerate(rows.tolist()):
        if number == 0 or conversation != rows[number - 1, 0]:
            said = 0
        tokens.append((said + asked, answered))
        said += asked + answered
    return _nonempty(np.array(tokens, dtype=np.int64))


def azure(data: Path, which: str) -> Trace:
    """An hour of Azure's LLM inference, `which` is "conv" or "code"."""
    path = data / "azure_llm_2023" / f"AzureLLMInferenceTrace_{which}.csv"

    def parse(rows: list[dict[str, str]]) -> Trace:
        # Seven digits of a second, of which datetime takes six.
        times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
        tokens = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
        return _trace(np.array(times), np.array(tokens, dtype=np.int64))

    return _parsed(path, lambda text: parse(list(csv.DictReader(text.splitlines()))))


def mooncake(data: Path) -> Trace:
    """An hour of Mooncake's conversations; its times are multiples of 3 s. Shared prefixes are left out."""
    path = data / "mooncake" / "conversation_trace.jsonl"

    def parse(text: str) -> Trace:
        rows = [msgspec.json.decode(line, type=_MooncakeRow) for line in text.splitlines()]
        times = np.array([row.timestamp / 1000 for row in rows])
        return _trace(
            times, np.array([(row.input_length, row.output_length) for row in rows], dtype=np.int64)
        )

    return _parsed(path, parse)


def parcae(data: Path) -> tuple[Change, ...]:
    """Parcae's p3 nodes: 11.4 h, up to 32 at a time."""
    path = data / "spot_parcae" / "p3trace.csv"

    def parse(text: str) -> tuple[Change, ...]:
        rows = [line.split(",") for line in text.splitlines()]
        verbs = {"add": True, "remove": False}
        return tuple(Change(int(at_ms) / 1000, verbs[verb], node) for at_ms, verb, node in rows)

    return _parsed(path, parse)


def parcae_minutes(data: Path, which: str) -> tuple[Change, ...]:
    """An hour of Parcae's, in minutes: `which` is "hh_55_65", "hl_15_25", "lh_80_90" or "ll_10_11"."""
    path = data / "spot_parcae" / f"gpt-1.5b_trace_{which}.txt"

    def parse(text: str) -> tuple[Change, ...]:
        rows = [msgspec.json.decode(line, type=tuple[int, str, _Minute]) for line in text.splitlines()]
        return tuple(
            Change(at_ms / 1000, verb == "add", node) for at_ms, verb, minute in rows for node in minute.nodes
        )

    return _parsed(path, parse)


def bamboo(data: Path, which: str) -> tuple[Count, ...]:
    """Bamboo's counts of spot instances: `which` is "p2" (88.7 h), "g4dn-1c" (24.5 h) or "g4dn-1d" (12.7 h).

    Times of the first are hours, of the others seconds, as its README infers.
    """
    name, unit_s = _BAMBOO[which]
    path = data / "spot_bamboo" / f"aws-spot-instances-{name}.csv"

    def parse(text: str) -> tuple[Count, ...]:
        rows = [line.split(",") for line in text.splitlines() if line]
        return tuple(Count(float(at) * unit_s, int(count)) for at, count in rows)

    return _parsed(path, parse)


_BAMBOO: Mapping[str, tuple[str, float]] = {
    "p2": ("p2-xlarge-2020-11-20-to-2020-11-23", 3600.0),
    "g4dn-1c": ("g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200", 1.0),
    "g4dn-1d": ("g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530", 1.0),
}

LENGTHS: Mapping[str, Callable[[Path], Ints]] = {
    "gsm8k": gsm8k,
    "sharegpt": sharegpt,
    "sharegpt-turns": sharegpt_turns,
}
"""Readers of lengths without times, by name."""

TRACES: Mapping[str, Callable[[Path], Trace]] = {
    "azure-conv": lambda data: azure(data, "conv"),
    "azure-code": lambda data: azure(data, "code"),
    "mooncake": mooncake,
}
"""Readers of requests with times, by name."""

SPOT: Mapping[str, Callable[[Path], tuple[Change, ...] | tuple[Count, ...]]] = {
    "bamboo-p2": lambda data: bamboo(data, "p2"),
    "bamboo-g4dn-1c": lambda data: bamboo(data, "g4dn-1c"),
    "bamboo-g4dn-1d": lambda data: bamboo(data, "g4dn-1d"),
    "parcae": parcae,
    "parcae-hh": lambda data: parcae_minutes(data, "hh_55_65"),
    "parcae-hl": lambda data: parcae_minutes(data, "hl_15_25"),
    "parcae-lh": lambda data: parcae_minutes(data, "lh_80_90"),
    "parcae-ll": lambda data: parcae_minutes(data, "ll_10_11"),
}
"""Readers of servers that come and go, by name."""


@lru_cache
def lengths_named(name: str, data: Path) -> Ints:
    """The lengths of a data set, read once a process."""
    return TRACES[name](data).tokens if name in TRACES else LENGTHS[name](data)


@lru_cache
def trace_named(name: str, data: Path) -> Trace:
    """The requests of a data set, read once a process."""
    return TRACES[name](data)


class _MooncakeRow(Struct):
    timestamp: int
    input_length: int
    output_length: int


class _Minute(Struct):
    nodes: tuple[str, ...]


def _lengths(path: Path, prompt: str, output: str) -> Ints:
    return _nonempty(_columns(path, prompt, output))


def _nonempty(tokens: Ints) -> Ints:
    """Conversations have empty messages, which are no requests."""
    return tokens[(tokens > 0).all(axis=1)]


def _columns(path: Path, *names: str) -> Ints:
    def parse(text: str) -> Ints:
        rows = csv.DictReader(text.splitlines())
        return np.array([[int(row[name]) for name in names] for row in rows], dtype=np.int64)

    return _parsed(path, parse)


def _trace(times_s: Floats, tokens: Ints) -> Trace:
    return Trace(times_s - times_s[0], tokens)


def _parsed(path: Path, parse: Callable[[str], T]) -> T:
    text = read_file(path).decode(errors="replace")
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError, IndexError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is not the data set that it should be: {error}") from error

"""Grammars are tried out in a process of their own before any engine sees them.

llama.cpp's grammar code takes what clients wrote without bounds: some grammars recurse or allocate until the
process ends, others need seconds for one token. A trial has bounded memory and time, so that only it ends.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from godwit.errors import BadRequestError, EngineError
from godwit.types import Sampling

TRIAL_S = 2.0
TRIAL_BYTES = 512 * 2**20
NUM_DRAWS = 16
_START_S = 60.0
_NUM_REMEMBERED = 256
_TOO_MUCH = "needs too much time or memory; make it smaller or less ambiguous"


class Wanted(Struct, frozen=True):
    """What is to be tried out."""

    grammar: str | None
    json_schema: str | None


class Verdict(Struct, frozen=True):
    """`error` None means that the grammar is good."""

    error: str | None


class GrammarTrials:
    """Tries one grammar at a time; thread-safe, and blocks for up to some seconds."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._known: OrderedDict[Wanted, Verdict] = OrderedDict()

    def check(self, sampling: Sampling) -> None:
        """BadRequestError where the request's grammar, if it has one, is wrong or needs too much."""
        wanted = Wanted(sampling.grammar, sampling.json_schema)
        if wanted.grammar is None and wanted.json_schema is None:
            return
        with self._guard:
            verdict = self._known.get(wanted)
            if verdict is None:
                verdict = self._known[wanted] = self._ask(wanted)
                while len(self._known) > _NUM_REMEMBERED:
                    self._known.popitem(last=False)
        if verdict.error is not None:
            raise BadRequestError(verdict.error, param="json_schema" if wanted.grammar is None else "grammar")

    def close(self) -> None:
        """End the process."""
        with self._guard:
            self._stop()

    def _ask(self, wanted: Wanted) -> Verdict:
        try:
            if self._process is None:
                self._start()
            return msgspec.json.decode(self._answer(msgspec.json.encode(wanted)), type=Verdict)
        except (OSError, msgspec.MsgspecError) as error:
            self._stop()
            raise EngineError(f"the grammar could not be tried out: {error}") from error

    def _start(self) -> None:
        command = (sys.executable, "-m", "godwit.engines.trial", str(self._model))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer(b"")

    def _answer(self, line: bytes) -> bytes:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("there is no process for trials")
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _START_S)[0]:
            raise OSError("the process for trials does not answer")
        return process.stdout.readline()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _serve(path: Path, source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer each line of `source`; ends with it."""
    from godwit.engines.capi import load_model
    from godwit.engines.gguf import GgufFile

    file = GgufFile(load_model(path, vocab_only=True), path)
    for line in source:
        verdict = _try(file, msgspec.json.decode(line, type=Wanted)) if line.strip() else Verdict(None)
        sink.write(msgspec.json.encode(verdict) + b"\n")
        sink.flush()


def _try(file: object, wanted: Wanted) -> Verdict:
    """Fork; the child's memory and time are bounded, and it tells what it found."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        with contextlib.suppress(BaseException):  # whatever it is: the parent sees that nothing was written
            os.write(theirs, msgspec.json.encode(_draw_some(file, wanted)))
        os._exit(0)
    os.close(theirs)
    answer, end_s = b"", time.monotonic() + TRIAL_S
    while select.select([ours], [], [], max(0.0, end_s - time.monotonic()))[0]:
        part = os.read(ours, 65536)
        answer += part
        if not part:
            break
    else:
        answer = b""
        os.kill(child, signal.SIGKILL)
    os.close(ours)
    os.waitpid(child, 0)
    what = "json_schema" if wanted.grammar is None else "grammar"
    return msgspec.json.decode(answer, type=Verdict) if answer else Verdict(f"{what} {_TOO_MUCH}")


def _draw_some(file: object, wanted: Wanted) -> Verdict:
    import resource

    import numpy as np

    from godwit.engines.gguf import GgufFile
    from godwit.engines.sampling import Candidates, Sampler
    from godwit.ports import SequenceSpec

    assert isinstance(file, GgufFile)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + TRIAL_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sampling = Sampling(0, NUM_DRAWS, grammar=wanted.grammar, json_schema=wanted.json_schema)
    logits = np.random.default_rng(0)
    try:
        sampler = Sampler(SequenceSpec((0,), (), sampling), file, Candidates(file.num_vocab))
    except BadRequestError as error:
        return Verdict(error.message)
    for _ in range(NUM_DRAWS):
        if sampler.draw(logits.normal(0, 5, file.num_vocab).astype(np.float32)) is None:
            break
    return Verdict(None)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)

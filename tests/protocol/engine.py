"""The modelled engine, but the test steps it, and it can be told to be unwilling."""

from collections.abc import Sequence

from godwit.errors import BadRequestError
from godwit.ports import EngineEvent, KvExported, SequenceSpec
from godwit.sim.draws import KV_BYTES_PER_TOKEN, NUM_VOCAB, HashedDraws, piece
from godwit.sim.engine import ModelledEngine
from godwit.sim.sequence import Plan, Slot
from godwit.sim.spec import Rates
from godwit.types import KvRange, ModelInfo, RequestId, Sampling, TokenId

__all__ = ["FORBIDDEN_SEED", "KV_BYTES_PER_TOKEN", "NUM_VOCAB", "StepEngine", "piece", "unmoved_run"]

CHUNK_TOKENS = 4
FORBIDDEN_SEED = 685
"""Stands for sampling that an engine may refuse."""
_DRAWS = HashedDraws()


def unmoved_run(prompt_ids: Sequence[TokenId], sampling: Sampling) -> tuple[list[TokenId], str]:
    """Output and finish reason of a request that nothing happens to."""
    return _DRAWS.unmoved_run(prompt_ids, sampling)


class StepEngine(ModelledEngine):
    """A `ModelledEngine` whose events wait for `Node.take_report`."""

    def __init__(self, info: ModelInfo, slots: int) -> None:
        self._ticks = 0.0
        super().__init__(info, slots, _DRAWS, Rates((1.0,), 1.0, CHUNK_TOKENS), self._time, meter=self._count)
        self.reports: list[list[EngineEvent]] = []
        self.refuses_forbidden_seed = False
        self.exports_nothing = False
        self.num_computed = 0

    def check(self, sequence: SequenceSpec) -> None:
        super().check(sequence)
        if self.refuses_forbidden_seed and sequence.sampling.seed == FORBIDDEN_SEED:
            raise BadRequestError("this engine cannot draw so")

    def step(self) -> None:
        """Take the commands, compute a chunk for each sequence, draw where all is computed, and report."""
        # A step with nothing to do is one as well.
        self._report(self.end(self.begin() or Plan(1, 0.0)))

    def fail(self, request: RequestId | None) -> list[EngineEvent]:
        self._report(super().fail(request))
        return []

    def _report(self, events: list[EngineEvent]) -> None:
        if events:
            self.reports.append(events)

    def _time(self) -> float:
        """Half a second between any two looks at the clock: no time is too short to be divided by."""
        self._ticks += 0.5
        return self._ticks

    def _count(self, _: RequestId, first: int, last: int, _seconds: float) -> None:
        self.num_computed += last - first

    def _may_join(self, one: Slot) -> bool:  # noqa: ARG002 -- part of what it replaces
        """Never: with engines that step in turn, rounds that take in all would leave nothing to shadow."""
        return False

    def _export(self, request: RequestId, one: Slot, kv: KvRange) -> None:
        if self.exports_nothing:
            self._events.append(KvExported(request, kv, bytearray(), "it is not computed"))
        else:
            super()._export(request, one, kv)

"""Ownership: each index once, from whoever may append; everybody else is refused, however late or early."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.errors import InvariantBrokenError
from godwit.protocol.journal import Journal, Verdict
from godwit.protocol.messages import TokenEvent
from godwit.types import Epoch, RequestId, WorkerId

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
WRONG = -1


def event(epoch: int, first: int, ids: list[int], finish: str | None = None) -> TokenEvent:
    return TokenEvent(RequestId("r"), Epoch(epoch), first, ids, [b"x"] * len(ids), finish)


def owned(*ids: int) -> tuple[Journal, Epoch]:
    """A journal that `a` owns, with these outputs."""
    journal = Journal()
    epoch = journal.assign(A)
    journal.take(A, event(epoch, 0, list(ids)))
    return journal, epoch


def test_the_owner_appends_and_repeats_are_cut() -> None:
    journal, epoch = owned(10, 11)
    verdict, fresh = journal.take(A, event(epoch, 1, [11, 12]))
    assert verdict is Verdict.TAKEN
    assert fresh is not None and (fresh.first_index, fresh.ids) == (2, [12])
    assert journal.take(A, event(epoch, 0, [10, 11, 12])) == (Verdict.TAKEN, None)
    assert journal.output_ids == [10, 11, 12]


def test_a_gap_takes_nothing() -> None:
    journal, epoch = owned(10)
    assert journal.take(A, event(epoch, 2, [12])) == (Verdict.GAP, None)
    assert journal.output_ids == [10]


def test_the_candidate_owns_the_request_with_its_first_event_and_the_former_owner_is_refused() -> None:
    journal, epoch = owned(10)
    offered = journal.offer(B)
    assert journal.take(A, event(epoch, 1, [11]))[0] is Verdict.TAKEN
    verdict, fresh = journal.take(B, event(offered, 0, [10, 11, 12]))
    assert verdict is Verdict.ADOPTED and fresh is not None and fresh.ids == [12]
    assert journal.owner == B and journal.candidate is None
    assert journal.take(A, event(epoch, 2, [WRONG, WRONG])) == (Verdict.STALE, None)


def test_the_tail_fills_what_the_former_owner_did_not_deliver() -> None:
    journal, _ = owned(10)
    offered = journal.offer(B)
    _, fresh = journal.take(B, event(offered, 1, [11, 12, 13]))
    assert fresh is not None and fresh.first_index == 1 and journal.output_ids == [10, 11, 12, 13]


def test_a_revoked_candidate_is_refused_for_good() -> None:
    journal, epoch = owned(10)
    offered = journal.offer(B)
    journal.revoke()
    assert journal.take(B, event(offered, 1, [WRONG])) == (Verdict.STALE, None)
    assert journal.offer(B) > offered
    assert journal.take(B, event(offered, 1, [WRONG])) == (Verdict.STALE, None)
    assert journal.is_entitled(A, epoch) and journal.is_candidate(B, journal.candidate_epoch)


def test_a_candidate_s_first_event_may_end_the_request_without_a_new_token() -> None:
    journal, _ = owned(10, 11)
    offered = journal.offer(B)
    verdict, fresh = journal.take(B, event(offered, 0, [10, 11], "stop"))
    assert verdict is Verdict.ADOPTED and fresh is not None
    assert (fresh.first_index, fresh.ids, fresh.finish) == (2, [], "stop")
    assert journal.is_finished
    assert journal.take(B, event(offered, 2, [12])) == (Verdict.STALE, None)


def test_a_worker_s_right_ends_with_its_epoch_and_is_not_another_worker_s() -> None:
    journal, epoch = owned(10)
    assert journal.take(B, event(epoch, 1, [WRONG])) == (Verdict.STALE, None)
    journal.disown()
    assert journal.take(A, event(epoch, 1, [WRONG])) == (Verdict.STALE, None)
    assert journal.assign(A) > epoch
    assert journal.take(A, event(epoch, 1, [WRONG])) == (Verdict.STALE, None)


def test_what_would_make_two_owners_is_refused() -> None:
    journal, _ = owned()
    journal.offer(B)
    with pytest.raises(InvariantBrokenError):
        journal.offer(C)
    with pytest.raises(InvariantBrokenError):
        journal.assign(C)
    with pytest.raises(InvariantBrokenError):
        Journal().offer(A)


TRUTH = list(range(100, 200))


@dataclass
class Rights:
    """All that was ever granted, whether it still holds, and where each grant's events may start."""

    journal: Journal = field(default_factory=Journal)
    granted: list[tuple[WorkerId, Epoch, int]] = field(default_factory=list)

    def change(self, random: Random) -> None:
        """One thing that the head may do."""
        journal, worker = self.journal, random.choice([A, B, C])
        if journal.owner is None:
            self.granted.append((worker, journal.assign(worker), len(journal.output_ids)))
        elif journal.candidate is None and random.random() < 0.5:
            self.granted.append((worker, journal.offer(worker), len(journal.output_ids)))
        else:
            random.choice([journal.disown, journal.revoke])()

    def send(self, random: Random) -> None:
        """An event of anybody who ever had a right; those without one lie, for nobody may notice."""
        journal = self.journal
        worker, epoch, known = random.choice(self.granted)
        may = journal.is_entitled(worker, epoch) or journal.is_candidate(worker, epoch)
        first = random.randint(max(0, known - 3), known + 4)
        num = random.randint(0, 6)
        ids = TRUTH[first : first + num] if may else [WRONG] * num
        before = list(journal.output_ids)
        verdict, fresh = journal.take(worker, event(epoch, first, ids))
        if not may:
            assert verdict is Verdict.STALE
        if verdict in (Verdict.STALE, Verdict.GAP):
            assert fresh is None and journal.output_ids == before
        if verdict is Verdict.ADOPTED:
            assert journal.owner == worker and journal.epoch == epoch
        if fresh is not None:
            assert fresh.first_index == len(before) and journal.output_ids == before + fresh.ids


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_interleaving_of_events_of_any_epochs(seed: int) -> None:
    random, rights = Random(seed), Rights()
    last_epoch = 0
    for _ in range(60):
        if not rights.granted or random.random() < 0.3:
            rights.change(random)
        else:
            rights.send(random)
        journal = rights.journal
        assert journal.output_ids == TRUTH[: len(journal.output_ids)]
        assert journal.epoch >= last_epoch
        last_epoch = journal.epoch
    epochs = [epoch for _, epoch, _ in rights.granted]
    assert epochs == sorted(set(epochs))


def test_a_journal_is_full_at_its_bound_whatever_a_worker_sends() -> None:
    journal = Journal(max_output=3)
    epoch = journal.assign(A)
    texts = [b"x"] * 5
    verdict, event = journal.take(A, TokenEvent(RequestId("r"), epoch, 0, [1, 2, 3, 4, 5], texts))
    assert verdict is Verdict.TAKEN
    assert event is not None
    assert (event.ids, event.finish) == ([1, 2, 3], "length")
    assert journal.output_ids == [1, 2, 3]
    assert journal.take(A, TokenEvent(RequestId("r"), epoch, 3, [4], [b"x"])) == (Verdict.STALE, None)

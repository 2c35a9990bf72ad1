"""What the scheduler is told of a worker that joins, and of the requests that it has."""

from collections.abc import Iterable

from godwit.protocol.entry import Entry
from godwit.scheduling.ask import Ask
from godwit.scheduling.events import DrainRequested, Placed, WorkerJoined
from godwit.scheduling.member import Member
from godwit.types import ChatPrompt, TokenPrompt

_CHARACTERS_PER_TOKEN = 4
"""In text that no worker has tokenized yet; good enough for choosing one."""


def join_events(member: Member, requests: Iterable[Entry]) -> list[WorkerJoined | DrainRequested]:
    """The worker with what has been placed there, and its drain if there is one."""
    joined = _joined(member, requests)
    if not member.is_draining:
        return [joined]
    return [joined, DrainRequested(joined.worker, member.drain_deadline_s)]


def _joined(member: Member, requests: Iterable[Entry]) -> WorkerJoined:
    worker = member.hello.worker
    here = [entry for entry in requests if worker in (entry.journal.owner, entry.journal.candidate)]
    return WorkerJoined(
        worker,
        member.hello.incarnation,
        member.hello.slots,
        member.hello.device_bytes,
        tuple(member.models.values()),
        tuple(_placed(one) for one in here if one.journal.owner == worker and not one.is_orphaned),
        tuple(_placed(one) for one in here if one.moving and one.journal.candidate == worker),
        tuple(sorted(member.loading)),
    )


def ask_of(entry: Entry) -> Ask:
    """What is known of a request."""
    num_prompt, is_counted = _num_prompt(entry)
    return Ask(
        num_prompt,
        len(entry.journal.output_ids),
        entry.expected_tokens,
        entry.sampling.max_tokens,
        entry.promises,
        entry.drawn_by,
        is_counted,
        was_accepted=entry.journal.prompt_ids is not None,
    )


def _placed(entry: Entry) -> Placed:
    return Placed(entry.request, entry.model, entry.journal.num_tokens, entry.was_preempted, ask_of(entry))


def _num_prompt(entry: Entry) -> tuple[int, bool]:
    """Its tokens, and whether they were counted."""
    if entry.journal.prompt_ids is not None:
        return len(entry.journal.prompt_ids), True
    prompt = entry.prompt
    if isinstance(prompt, TokenPrompt):
        return len(prompt.ids), True
    texts = (one.content for one in prompt.messages) if isinstance(prompt, ChatPrompt) else (prompt.text,)
    return sum(len(text) for text in texts) // _CHARACTERS_PER_TOKEN, False

"""Which servers can go on with a request as it was: they keep its promises, and have a context for it.

Promises: see `types.Carries` and docs/engines.md. Contexts: servers of one model may differ in how many
tokens of prompt and output they take. A request that would lose a promise, or could be cut off earlier than
where it runs, is moved or preempted for nobody's sake. Where its server leaves anyway it goes on as well as
may be, unless that would be of no use (`types.MUST_KEEP`) or it has too many tokens already.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from godwit.scheduling.ask import Ask
from godwit.scheduling.view import ClusterView, Contexts, ModelView, Running
from godwit.types import MUST_KEEP, Carries, ModelInfo, ModelName, Promise, WorkerId, broken_promises

NOBODY: frozenset[WorkerId] = frozenset()
Avoided = Sequence[frozenset[WorkerId]]
"""Whom a request avoids while it has a choice, then, if that differs, whom it avoids at any price."""


class Needs(NamedTuple):
    """What requests need to go on as they were: promises kept, and a context of so many tokens."""

    promises: frozenset[Promise]
    num_tokens: int

    def are_met(self, here: ModelInfo, there: ModelInfo) -> bool:
        """Whether they may go from here to there."""
        is_long = there.context_tokens >= self.num_tokens
        return is_long and not broken_promises(self.promises, here.carries, there.carries)


def needs(state: ModelView) -> Needs:
    """What the requests of an instance need, all together."""
    promises = frozenset(promise for one in state.running for promise in one.ask.promises)
    return Needs(promises, max((may_reach(one, state.info) for one in state.running), default=0))


def may_reach(one: Running, here: ModelInfo) -> int:
    """The tokens, prompt and output, at which a request ends at the latest where it runs."""
    if one.ask.num_prompt is None or one.ask.max_tokens is None:
        return here.context_tokens
    return min(here.context_tokens, one.ask.num_prompt + one.ask.max_tokens)


def avoided(view: ClusterView, running: Running) -> Avoided:
    """Whom to avoid when a running request leaves its server, in order: who could not go on with it as it
    was, who not at all. One answer where these are the same."""
    model = running.model
    here = view.workers[running.worker].models[model].info
    breaking, unfit = _breaking(view, model, running.ask.promises, here.carries)
    last = may_reach(running, here)
    worse = breaking | _cramped(view, model, last)
    if worse != unfit:
        # How far it is, is a guess; but it still runs.
        guess = running.context_tokens(view.now, view.times.token_s(running.worker, model))
        unfit |= _cramped(view, model, min(guess + 1, last))
    return (worse,) if worse == unfit else (worse, unfit)


def avoided_by_waiting(view: ClusterView, model: ModelName, ask: Ask) -> Avoided:
    """The same for a request that waits: who would probably be full before it ends, who is for it now.

    Without output it has no promise to lose. Where a new one is too long for all, one of them must tell its
    client so; one that was accepted before waits for a server like that.
    """
    breaking = unfit = NOBODY
    if ask.num_output:
        breaking, unfit = _breaking(view, model, ask.promises, ask.drawn_by)
    if ask.num_prompt is not None:
        num_holders = len(view.holders.get(model, ()))
        if ask.is_counted:
            full_now = _cramped(view, model, ask.context_tokens + 1)
            if ask.was_accepted or len(full_now) < num_holders:
                unfit |= full_now
        breaking |= unfit
        if len(_contexts(view, model)) > 1:
            left = view.times.remaining_tokens(model, ask.num_output, ask.expected_tokens, ask.max_tokens)
            full_before = _cramped(view, model, ask.context_tokens + left)
            if len(full_before) < num_holders:
                breaking |= full_before
    return (breaking,) if unfit == breaking else (breaking, unfit)


def no_longer_contexts(view: ClusterView, model: ModelName, worker: WorkerId) -> frozenset[WorkerId]:
    """Who takes no more tokens than `worker`, itself included."""
    return _cramped(view, model, view.workers[worker].models[model].info.context_tokens + 1)


def _cramped(view: ClusterView, model: ModelName, num_tokens: float) -> frozenset[WorkerId]:
    """Whose context is shorter than that."""
    found = NOBODY
    for context_tokens, up_to in _contexts(view, model):
        if context_tokens >= num_tokens:
            break
        found = up_to
    return found


def _contexts(view: ClusterView, model: ModelName) -> Contexts:
    """Each length of a context that there is, shortest first, and who has none that is longer."""
    known = view.contexts.get(model)
    if known is None:
        lengths: dict[int, list[WorkerId]] = {}
        for name in view.holders.get(model, ()):
            lengths.setdefault(view.workers[name].models[model].info.context_tokens, []).append(name)
        up_to: frozenset[WorkerId] = NOBODY
        sorted_up = []
        for length in sorted(lengths):
            up_to |= frozenset(lengths[length])
            sorted_up.append((length, up_to))
        known = view.contexts[model] = tuple(sorted_up)
    return known


def _breaking(
    view: ClusterView, model: ModelName, promises: Collection[Promise], source: Carries
) -> tuple[frozenset[WorkerId], frozenset[WorkerId]]:
    """Who breaks any promise, and who one that must be kept."""
    if not promises:
        return NOBODY, NOBODY
    breaks: dict[WorkerId, tuple[Promise, ...]] = {}
    for name in view.holders.get(model, ()):
        broken = broken_promises(promises, source, view.workers[name].models[model].info.carries)
        if broken:
            breaks[name] = broken
    unfit = frozenset(name for name, broken in breaks.items() if MUST_KEEP.intersection(broken))
    return frozenset(breaks), unfit

"""Which servers keep a request's promises: see `types.Carries` and docs/engines.md.

A request whose continuation would break one is moved or preempted for nobody's sake. Where its server leaves
anyway it goes on as an approximation, unless that would be of no use (`types.MUST_KEEP`).
"""

from collections.abc import Collection, Sequence

from godwit.scheduling.ask import Ask
from godwit.scheduling.view import ClusterView, ModelView, Running
from godwit.types import MUST_KEEP, Carries, ModelName, Promise, WorkerId, broken_promises

NOBODY: frozenset[WorkerId] = frozenset()


def promised(state: ModelView) -> set[Promise]:
    """What the requests of an instance must keep, all together."""
    return {promise for one in state.running for promise in one.ask.promises}


def avoided(view: ClusterView, running: Running) -> Sequence[frozenset[WorkerId]]:
    """Whom to avoid when a running request leaves its server, in order: who breaks any promise, who one that
    must be kept. One answer where these are the same."""
    if not running.ask.promises:
        return (NOBODY,)
    source = view.workers[running.worker].models[running.model].info.carries
    return _avoided(view, running.model, running.ask.promises, source)


def avoided_by_waiting(view: ClusterView, model: ModelName, ask: Ask) -> Sequence[frozenset[WorkerId]]:
    """The same for a request that waits; one that has no output yet has nothing to lose."""
    if not ask.promises or not ask.num_output:
        return (NOBODY,)
    return _avoided(view, model, ask.promises, ask.drawn_by)


def _avoided(
    view: ClusterView, model: ModelName, promises: Collection[Promise], source: Carries
) -> Sequence[frozenset[WorkerId]]:
    breaks: dict[WorkerId, tuple[Promise, ...]] = {}
    for name in view.holders.get(model, ()):
        broken = broken_promises(promises, source, view.workers[name].models[model].info.carries)
        if broken:
            breaks[name] = broken
    breaking = frozenset(breaks)
    unfit = frozenset(name for name, broken in breaks.items() if MUST_KEEP.intersection(broken))
    return (breaking,) if unfit == breaking else (breaking, unfit)

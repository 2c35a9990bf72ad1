"""Where one more request of a model could run now, what that would take, and which one the policy takes.

It asks the policies' own functions and does nothing.
"""

from msgspec import Struct

from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.keeping import needs
from godwit.scheduling.policies import locality, nearest, policy_named, preemption
from godwit.scheduling.startup import describe, fit, loading_s, refusal, remaining_s
from godwit.scheduling.victims import Places, clear_by_killing, clear_by_moving, stay_reason
from godwit.scheduling.view import ClusterView, ModelView, WorkerView
from godwit.types import ModelName, Tier, WorkerId


class VictimRow(Struct, frozen=True):
    """A busy instance that would have to leave; its requests have `context_tokens` together.

    Without a `destination` they would be preempted.
    """

    model: ModelName
    num_requests: int
    context_tokens: float
    destination: WorkerId | None
    load_s: float
    resume_s: float


class Row(Struct, frozen=True):
    """One worker that serves the model: the `step` there and its `seconds` in all, or why there is none.

    `load_s` is what a load from `tier` would take after `queue_s`, at `bandwidth_bytes_per_s`; with a load
    under way, `queue_s` is what is left of it. CLEAR stands here also where the policy never clears: that is
    what people want to compare. `text` says it all in words.
    """

    worker: WorkerId
    tier: Tier
    text: str
    step: str | None = None
    seconds: float | None = None
    queue_s: float = 0.0
    load_s: float = 0.0
    checkpoint_bytes: int = 0
    bandwidth_bytes_per_s: float | None = None
    evict: tuple[ModelName, ...] = ()
    victims: tuple[VictimRow, ...] = ()
    is_chosen: bool = False


class Explanation(Struct, frozen=True):
    """A row for every worker that serves the model, those soonest first, and what the policy chooses now."""

    model: ModelName
    policy: str
    text: str
    choice: Choice | None
    rows: tuple[Row, ...]


def explain(
    view: ClusterView, model: ModelName, policy: str, exclude: frozenset[WorkerId] = frozenset()
) -> Explanation:
    """What the policy of that name would do with one more request of `model`; ConfigError: no such policy."""
    choice = policy_named(policy)(view, model, exclude)
    places = Places(view, exclude)
    rows = []
    for name in view.holders.get(model, ()):
        worker = view.workers[name]
        if choice is not None and choice.worker == name:
            rows.append(_row(view, worker, model, choice, is_chosen=True))
        elif name in exclude:
            rows.append(_refused(view, worker, model, "excluded: it must not run there"))
        else:
            rows.append(_possible(places, worker, model, policy))
    rows.sort(key=lambda row: (row.seconds is None, row.seconds or 0.0, row.worker))
    return Explanation(model, policy, _sentence(view, model, policy, exclude, choice), choice, tuple(rows))


def _sentence(
    view: ClusterView, model: ModelName, policy: str, exclude: frozenset[WorkerId], choice: Choice | None
) -> str:
    if choice is not None:
        return f"{choice.worker} {describe(view, model, choice)}"
    if policy_named(policy) is locality and (near := nearest(view, model, exclude)):
        return f"waits for {' or '.join(sorted(one.id for one in near))}, where the checkpoint is nearest"
    return "waits: no server can take it now"


def _possible(places: Places, worker: WorkerView, model: ModelName, policy: str) -> Row:
    clear = clear_by_killing if policy_named(policy) is preemption else clear_by_moving
    choice = fit(places.view, worker, model) or clear(places, worker, model)
    if choice is not None:
        return _row(places.view, worker, model, choice, is_chosen=False)
    state = worker.models[model]
    return _refused(places.view, worker, model, refusal(worker, state) or _no_room(places, worker, state))


def _row(view: ClusterView, worker: WorkerView, model: ModelName, choice: Choice, *, is_chosen: bool) -> Row:
    info = worker.models[model].info
    return Row(
        worker.id,
        Tier.DEVICE if choice.step is Step.START else info.tier,
        describe(view, model, choice),
        choice.step.name.lower(),
        choice.seconds,
        choice.queue_s,
        choice.load_s,
        info.checkpoint_bytes,
        _bandwidth(info.checkpoint_bytes, choice.load_s),
        choice.evict,
        tuple(_victim(view, worker, victim) for victim in choice.victims),
        is_chosen,
    )


def _refused(view: ClusterView, worker: WorkerView, model: ModelName, reason: str) -> Row:
    state = worker.models[model]
    info = state.info
    tier = Tier.DEVICE if info.is_loaded else info.tier
    if state.is_loading or state.is_coming:
        return Row(
            worker.id, tier, reason, queue_s=remaining_s(view, state), checkpoint_bytes=info.checkpoint_bytes
        )
    queue_s, load_s = (0.0, 0.0) if info.is_loaded else loading_s(view, worker, info)
    return Row(
        worker.id,
        tier,
        reason,
        queue_s=queue_s,
        load_s=load_s,
        checkpoint_bytes=info.checkpoint_bytes,
        bandwidth_bytes_per_s=_bandwidth(info.checkpoint_bytes, load_s),
    )


def _bandwidth(num_bytes: int, load_s: float) -> float | None:
    return num_bytes / load_s if num_bytes > 0 and load_s > 0 else None


def _victim(view: ClusterView, worker: WorkerView, victim: Victim) -> VictimRow:
    state = worker.models[victim.model]
    token_s = view.times.token_s(worker.id, victim.model)
    tokens = sum(one.context_tokens(view.now, token_s) for one in state.running)
    return VictimRow(
        victim.model, len(state.running), tokens, victim.destination, victim.load_s, victim.resume_s
    )


def _no_room(places: Places, worker: WorkerView, wanted: ModelView) -> str:
    """Why the device cannot be cleared for a model."""
    if wanted.info.device_bytes > worker.device_bytes:
        return f"too big: it needs {wanted.info.device_bytes} bytes of a device of {worker.device_bytes}"
    parts = []
    for name in sorted(worker.on_device):
        state = worker.models[name]
        if name != wanted.info.name and not state.is_evictable:
            parts.append(f"{name}, which {_why_it_stays(places, worker, state)}")
    if worker.claimed_bytes > 0:
        parts.append(f"{worker.claimed_bytes} bytes kept for models that are coming")
    return f"busy: the device is full of {'; '.join(parts)}"


def _why_it_stays(places: Places, worker: WorkerView, state: ModelView) -> str:
    if reason := stay_reason(places.view, state):
        return f"cannot move because {reason}"
    if not places.moves(worker, state, 1):
        exactly = " and could continue its requests exactly" if needs(state).promises else ""
        return f"cannot move because no other server has room for it{exactly}"
    return "could move, but not enough with it"

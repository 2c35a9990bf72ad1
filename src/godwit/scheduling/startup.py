"""What one worker could do for one more request of a model, and how soon the request could start there."""

from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.view import ClusterView, ModelView, WorkerView
from godwit.types import ModelInfo, ModelName


def refusal(worker: WorkerView, state: ModelView) -> str | None:
    """Why the worker can take no more of the model's requests, however much memory it has; None: it can."""
    if worker.is_draining:
        return "draining"
    if state.is_leaving:
        return "its instance there is leaving"
    if state.num_used >= worker.slots:
        return f"all {worker.slots} slots taken"
    return None


def has_free_slot(worker: WorkerView, state: ModelView) -> bool:
    """Whether one more request can start at once."""
    is_up = state.info.is_loaded and not (state.is_loading or state.is_coming)
    return is_up and refusal(worker, state) is None


def fit(view: ClusterView, worker: WorkerView, model: ModelName) -> Choice | None:
    """How `worker` could take one more request for `model` without touching busy instances; None: not now."""
    state = worker.models.get(model)
    if state is None or refusal(worker, state) is not None:
        return None
    if has_free_slot(worker, state):
        return Choice(worker.id, Step.START)
    if state.is_loading or state.is_coming:
        return Choice(worker.id, Step.WAIT_FOR_LOAD, queue_s=remaining_s(view, state))
    evict = evictions(worker, state.info.device_bytes)
    if evict is None:
        return None
    queue_s, load_s = loading_s(view, worker, state.info)
    return Choice(worker.id, Step.LOAD, evict, queue_s=queue_s, load_s=load_s)


def remaining_s(view: ClusterView, state: ModelView) -> float:
    """Seconds until a load that is under way or claimed is expected to be over."""
    return max(0.0, state.ready_at_s - view.now)


def loading_s(view: ClusterView, worker: WorkerView, info: ModelInfo) -> tuple[float, float]:
    """(queue_s, load_s) of a load that would begin now."""
    return worker.queue_s(info.tier, view.now), view.times.load_s(worker.id, info)


def evictions(worker: WorkerView, needed_bytes: int) -> tuple[ModelName, ...] | None:
    """Idle models to unload, least recently used first, until there is room; None: all would not do."""
    missing = needed_bytes - worker.free_bytes
    if missing <= 0:
        return ()
    if missing > worker.evictable_bytes:
        return None
    evicted: list[ModelName] = []
    evictable = [one for one in (worker.models[name] for name in worker.on_device) if one.is_evictable]
    for state in sorted(evictable, key=lambda state: (state.used_at_s, state.info.name)):
        missing -= state.info.device_bytes
        evicted.append(state.info.name)
        if missing <= 0:
            break
    return tuple(evicted)


def describe(view: ClusterView, model: ModelName, choice: Choice) -> str:
    """What a choice for a request of `model` means, as a part of a sentence; its worker is its subject."""
    if choice.step is Step.START:
        return "starts at once"
    if choice.step is Step.WAIT_FOR_LOAD:
        return f"waits {choice.queue_s:.1f} s for the load under way"
    parts = [_leaves(view, choice)] if choice.victims else []
    tier = view.workers[choice.worker].models[model].info.tier
    load = f"loads in {choice.load_s:.1f} s from {tier}"
    if choice.queue_s > 0:
        load += f" behind {choice.queue_s:.1f} s of other loads"
    if choice.evict:
        load += f" after evicting {', '.join(choice.evict)}"
    text = ", then ".join([*parts, load])
    return text if choice.seconds == choice.load_s else f"{text}: {choice.seconds:.1f} s in all"


def _leaves(view: ClusterView, choice: Choice) -> str:
    """Who must leave, and how."""
    models = view.workers[choice.worker].models
    parts = []
    for victim in choice.victims:
        count = models[victim.model].num_running
        who = f"{victim.model} ({count} request{'' if count == 1 else 's'})"
        if victim.may_end:
            parts.append(f"lets {who} end")
        elif victim.destination is None:
            parts.append(f"preempts {who}")
        else:
            parts.append(f"moves {who} to {victim.destination} in {victim.seconds:.1f} s")
    return " and ".join(parts)

"""The head's state in the shapes of the admin API."""

from collections import Counter
from collections.abc import Iterable

from godwit.admin.shapes import (
    ClusterStatus,
    EmulatedTiers,
    ModelListing,
    ModelStatus,
    MoveStatus,
    Place,
    Progress,
    RequestStatus,
    WorkerStatus,
)
from godwit.protocol.entry import Entry, MoveRecord, Moving
from godwit.scheduling.control import Control
from godwit.scheduling.member import Member
from godwit.scheduling.view import WorkerView
from godwit.types import ModelInfo


def cluster_status(control: Control, records: Iterable[MoveRecord]) -> ClusterStatus:
    """All that `godwit status` shows."""
    views = control.view().workers
    used = Counter(entry.journal.owner for entry in control.requests)
    workers = [
        _worker(control, member, views.get(name), used[name])
        for name, member in sorted(control.members.items())
    ]
    requests = [_request(entry) for entry in control.requests]
    return ClusterStatus(tuple(workers), tuple(requests), tuple(records))


def _worker(control: Control, member: Member, view: WorkerView | None, used: int) -> WorkerStatus:
    hello = member.hello
    return WorkerStatus(
        name=hello.worker,
        state="draining" if member.is_draining else "up",
        slots=hello.slots,
        used=used,
        incarnation=hello.incarnation,
        models=tuple(_model(control, member, view, info) for info in member.models.values()),
        draining=member.is_draining,
        emulated_bandwidth_bytes_per_s=hello.emulated_bytes_per_s,
        device_bytes=hello.device_bytes,
        used_bytes=0 if view is None else view.held_bytes,
        dram_bytes=hello.dram_bytes,
        emulated_tiers=dict(hello.emulated_tiers),
    )


def emulated_tiers(control: Control) -> EmulatedTiers:
    """Of the workers that emulate any."""
    return {
        name: dict(member.hello.emulated_tiers)
        for name, member in sorted(control.members.items())
        if member.hello.emulated_tiers
    }


def model_listings(control: Control) -> tuple[ModelListing, ...]:
    """Every model that some worker serves or that was added, by name, with where it is."""
    views = control.view().workers
    places: dict[str, list[Place]] = {name: [] for name in control.catalog.added}
    for worker, member in sorted(control.members.items()):
        for info in member.models.values():
            model = _model(control, member, views.get(worker), info)
            places.setdefault(info.name, []).append(
                Place(
                    worker,
                    info.tier,
                    info.is_loaded,
                    model.is_loading,
                    model.num_running,
                    info.device_bytes,
                    info.checkpoint_bytes,
                    info.digest,
                )
            )
    return tuple(
        ModelListing(name, name in control.catalog.pinned, name in control.catalog.added, tuple(where))
        for name, where in sorted(places.items())
    )


def _model(control: Control, member: Member, view: WorkerView | None, info: ModelInfo) -> ModelStatus:
    seen = None if view is None else view.models.get(info.name)
    moved = member.progress.get(info.name)
    return ModelStatus(
        info.name,
        info.is_loaded,
        info.context_tokens,
        info.digest,
        info.tier,
        info.checkpoint_bytes,
        info.device_bytes,
        info.has_chat_template,
        is_loading=seen is not None and seen.is_loading,
        progress=None if moved is None else Progress(moved.tier, moved.num_bytes, moved.total_bytes),
        num_running=0 if seen is None else seen.num_running,
        is_pinned=info.name in control.catalog.pinned,
    )


def _request(entry: Entry) -> RequestStatus:
    return RequestStatus(
        entry.request,
        entry.model,
        entry.journal.owner,
        entry.state,
        len(entry.journal.prompt_ids or ()),
        len(entry.journal.output_ids),
        entry.journal.epoch,
        entry.num_moves,
        None if (moving := entry.moving) is None else _move(moving),
    )


def _move(moving: Moving) -> MoveStatus:
    return MoveStatus(moving.move, moving.source, moving.destination, moving.machine.state.value)

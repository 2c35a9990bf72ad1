"""In whatever order things happen, slots add up, nothing is lost or started twice, all get their turn."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from godwit.scheduling.choices import Step
from godwit.scheduling.events import Decision, Interrupt, Load, Move, MoveRequested, Start
from godwit.scheduling.explain import explain
from godwit.scheduling.policies import POLICIES, quickest
from godwit.types import ModelName, RequestId, WorkerId
from tests.scheduling.cluster import BYTES, HUGE, OTHER, SMALL, Cluster

NAMES = [WorkerId(name) for name in "abc"]


class AnyOrder(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.cluster = Cluster(policy)
        self.cluster.join(NAMES[0], 2)

    def pick(self, data: st.DataObject, names: list[RequestId]) -> RequestId:
        return data.draw(st.sampled_from(sorted(names)))

    def running(self, *, is_moving: bool | None = None) -> list[RequestId]:
        return [
            name
            for name, one in self.cluster.requests.items()
            if one.worker is not None and is_moving in (None, one.destination is not None)
        ]

    @rule(name=st.sampled_from(NAMES), slots=st.integers(1, 3))
    def join(self, name: WorkerId, slots: int) -> None:
        if name not in self.cluster.workers:
            self.cluster.join(name, slots)

    @rule(data=st.data(), is_handed_over=st.booleans())
    @precondition(lambda self: self.cluster.workers)
    def leave(self, data: st.DataObject, is_handed_over: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.workers)))
        self.cluster.leave(name, is_handed_over=is_handed_over)

    @rule(
        model=st.sampled_from([SMALL, SMALL, OTHER, HUGE]),
        exclude=st.sets(st.sampled_from(NAMES), max_size=1),
    )
    def queue(self, model: ModelName, exclude: set[WorkerId]) -> None:
        """What is explained is what is then done, unless others wait for the same model."""
        view = self.cluster.scheduler.snapshot()
        waiting = [one.model for one in self.cluster.requests.values() if one.worker is None]
        told = explain(view, model, self.cluster.policy, frozenset(exclude)).choice
        decisions = self.cluster.queue(model, exclude)
        if model not in waiting:
            assert _place_of(decisions, model, self.cluster) == (
                None if told is None else (told.step, told.worker)
            )

    @rule(data=st.data())
    @precondition(lambda self: self.cluster.requests)
    def end(self, data: st.DataObject) -> None:
        self.cluster.end(self.pick(data, list(self.cluster.requests)))

    @rule(data=st.data())
    @precondition(lambda self: self.running(is_moving=False))
    def refuse(self, data: st.DataObject) -> None:
        self.cluster.refuse(self.pick(data, self.running(is_moving=False)))

    @rule(data=st.data(), error=st.sampled_from([None, None, "damaged"]))
    @precondition(lambda self: any(worker.loading for worker in self.cluster.workers.values()))
    def load_ended(self, data: st.DataObject, error: str | None) -> None:
        loading = [(name, model) for name, one in self.cluster.workers.items() for model in one.loading]
        self.cluster.load_ended(*data.draw(st.sampled_from(sorted(loading))), error)

    @rule(data=st.data(), to=st.sampled_from([None, *NAMES]))
    @precondition(lambda self: self.cluster.requests)
    def move(self, data: st.DataObject, to: WorkerId | None) -> None:
        name = self.pick(data, list(self.cluster.requests))
        self.cluster.tell(MoveRequested(name, to, "asked for"))

    @rule(data=st.data(), is_done=st.booleans())
    @precondition(lambda self: self.running(is_moving=True))
    def end_move(self, data: st.DataObject, is_done: bool) -> None:
        name = self.pick(data, self.running(is_moving=True))
        self.cluster.end_move(name, is_done=is_done and self.cluster.can_end_move(name))

    @rule(data=st.data(), within_s=st.sampled_from([None, 0.0, 3.0]))
    @precondition(lambda self: self.cluster.workers)
    def drain(self, data: st.DataObject, within_s: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.workers)))
        self.cluster.drain(name, None if within_s is None else self.cluster.now + within_s)

    @rule(data=st.data())
    @precondition(lambda self: self.running())
    def accept(self, data: st.DataObject) -> None:
        self.cluster.accept(self.pick(data, self.running()))

    @rule(model=st.sampled_from([SMALL, OTHER, HUGE]), is_pinned=st.booleans())
    def pin(self, model: ModelName, is_pinned: bool) -> None:
        self.cluster.pin(model, is_pinned=is_pinned)

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 30.0]))
    def tick(self, seconds: float) -> None:
        self.cluster.tick(seconds)

    @rule()
    def restart_scheduler(self) -> None:
        self.cluster.restart_scheduler()

    @invariant()
    def the_scheduler_s_books_are_right(self) -> None:
        view = self.cluster.scheduler.snapshot()
        assert set(view.workers) == set(self.cluster.workers)
        for name, worker in self.cluster.workers.items():
            assert view.workers[name].is_draining == (name in self.cluster.drains)
            for model, state in view.workers[name].models.items():
                assert state.num_running + state.num_reserved == self.cluster.used(name, model)
                assert state.num_used <= worker.slots
                assert state.info.is_loaded == (model in worker.loaded)
                assert state.is_loading == (model in worker.loading)
                waits = any(
                    one.model == model and one.worker is None for one in self.cluster.requests.values()
                )
                assert not state.is_coming or waits, "a claim is for somebody"
            assert view.workers[name].free_bytes >= 0
            assert view.workers[name].claimed_bytes >= 0
            held = sum(BYTES[model] for model in worker.loaded | worker.loading)
            assert view.workers[name].held_bytes == held

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        view = self.cluster.scheduler.snapshot()
        for one in self.cluster.requests.values():
            for name, worker in self.cluster.workers.items():
                may_start = name not in one.exclude | one.avoid and name not in self.cluster.drains
                is_leaving = view.workers[name].models[one.model].is_leaving
                if one.worker is None and may_start and one.model in worker.loaded and not is_leaving:
                    assert self.cluster.used(name, one.model) == worker.slots

    @invariant()
    def nobody_waits_who_could_be_helped_without_touching_others(self) -> None:
        if self.cluster.policy == "locality":
            return
        view = self.cluster.scheduler.snapshot()
        waiting = [one for one in self.cluster.requests.values() if one.worker is None]
        for model in BYTES:
            helpable = [
                one
                for one in waiting
                if one.model == model and quickest(view, model, frozenset(one.exclude | one.avoid))
            ]
            states = [worker.models[model] for worker in view.workers.values()]
            assert sum(state.num_promised for state in states) >= len(helpable)

    @invariant()
    def whoever_is_drained_has_left(self) -> None:
        for name in self.cluster.drains:
            assert self.cluster.workers[name].has_left == (self.cluster.used(name) == 0)

    def teardown(self) -> None:
        while self.cluster.requests:
            self.cluster.end(next(iter(self.cluster.requests)))
        for worker in self.cluster.scheduler.snapshot().workers.values():
            assert worker.num_used == worker.claimed_bytes == 0
            assert not any(state.is_leaving or state.is_coming for state in worker.models.values())


def _place_of(decisions: list[Decision], model: ModelName, cluster: Cluster) -> tuple[Step, WorkerId] | None:
    """Where the latest request was sent, and by which step."""
    view = cluster.scheduler.snapshot()
    coming = [worker.id for worker in view.workers.values() if worker.models[model].is_coming]
    promised = [worker.id for worker in view.workers.values() if worker.models[model].num_promised]
    for decision in decisions:
        match decision:
            case Start():
                return Step.START, decision.worker
            case Load(worker, name) if name == model:
                return Step.LOAD, worker
            case Move(_, worker) if worker in coming:
                return Step.CLEAR, worker
            case Interrupt(_, worker, _, True):
                return Step.CLEAR, worker
    return (Step.WAIT_FOR_LOAD, promised[0]) if promised else None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

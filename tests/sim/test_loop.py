"""Virtual time: events come in the total order (time, priority, seq), whatever they are."""

from hypothesis import given
from hypothesis import strategies as st

from godwit.sim.loop import Loop


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 2)), max_size=30))
def test_ties_are_broken_by_priority_then_by_the_order_of_their_making(
    events: list[tuple[float, int]],
) -> None:
    loop = Loop()
    happened: list[int] = []
    for number, (at_s, priority) in enumerate(events):
        loop.at(at_s, lambda number=number: happened.append(number), priority)  # type: ignore[misc]
    while loop.step():
        pass
    assert happened == sorted(range(len(events)), key=lambda number: (*events[number], number))
    assert loop.num_events == len(events)


def test_what_is_planned_for_this_instant_comes_after_what_was_but_before_a_higher_priority() -> None:
    loop = Loop()
    happened: list[str] = []

    def first() -> None:
        happened.append("first")
        loop.after(0.0, lambda: happened.append("third"))

    loop.at(1.0, lambda: happened.append("last"), priority=1)
    loop.at(1.0, first)
    loop.at(1.0, lambda: happened.append("second"))
    while loop.step():
        pass
    assert happened == ["first", "second", "third", "last"]


def test_what_was_called_off_does_not_happen_and_is_not_next() -> None:
    loop = Loop()
    happened: list[int] = []
    loop.at(1.0, lambda: happened.append(1)).cancel()
    loop.at(2.0, lambda: happened.append(2))
    assert loop.next_s == 2.0
    while loop.step():
        pass
    assert (happened, loop.now_s, loop.num_events) == ([2], 2.0, 1)
    assert loop.next_s == float("inf")


def test_nothing_happens_in_the_past() -> None:
    loop = Loop()
    times: list[float] = []

    def plan() -> None:
        loop.at(1.0, lambda: times.append(loop.now_s))

    loop.at(3.0, plan)
    while loop.step():
        pass
    assert times == [3.0]

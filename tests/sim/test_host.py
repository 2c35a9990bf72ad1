"""Loads in virtual time: turns on each way, and what stays in memory, as of the real store."""

import pytest

from godwit.sim.host import Host
from godwit.sim.loop import Loop
from godwit.sim.spec import HostSpec, ModelSpec
from godwit.types import LoadRecord, ModelName, Tier

MODELS = {ModelName(name): ModelSpec(ModelName(name), 100, 1) for name in "abc"}
A, B, C = MODELS
RATES = {Tier.REMOTE: 5.0, Tier.SSD: 10.0, Tier.DRAM: 50.0}


def host(dram_bytes: int = 1000, *in_dram: ModelName) -> Host:
    return Host(HostSpec("h", RATES, dram_bytes, in_dram, (A, B)), dict(MODELS), Loop())


def loaded(one: Host, *models: ModelName) -> list[tuple[float, LoadRecord]]:
    """Ask for loads at the same time; when each was over and what it took, in order."""
    over: list[tuple[float, LoadRecord]] = []
    for model in models:
        one.load(model, lambda record: over.append((one.loop.now_s, record)), lambda: True)
    while one.loop.step():
        pass
    return over


def test_a_load_takes_the_whole_way() -> None:
    # 20 s, of which 10 are from afar, 8 from SSD and 2 from memory.
    assert loaded(host(), C) == [(20.0, LoadRecord(Tier.REMOTE, 100, 0.0, 20.0))]


def test_two_loads_from_ssd_take_turns_on_each_way() -> None:
    first, second = loaded(host(), A, B)
    assert first == (10.0, LoadRecord(Tier.SSD, 100, 0.0, 10.0))
    # The first one's way from memory does not keep the second one from leaving the SSD.
    assert second == (18.0, LoadRecord(Tier.SSD, 100, 8.0, 10.0))


def test_a_load_from_memory_passes_those_from_ssd() -> None:
    (first_s, first), (second_s, _) = loaded(host(1000, B), A, B)
    assert (first_s, first.tier) == (2.0, Tier.DRAM)
    assert second_s == pytest.approx(10.0)


def test_a_second_load_of_a_model_finds_it_in_memory() -> None:
    first, second = loaded(host(), A, A)
    assert (first[0], second[0]) == (10.0, 12.0)
    assert second[1].tier is Tier.DRAM


def test_the_least_recently_used_leaves_memory() -> None:
    one = host(200, A, B)
    loaded(one, A)
    loaded(one, C)
    assert [one.tier(model) for model in (A, B, C)] == [Tier.DRAM, Tier.SSD, Tier.DRAM]


def test_what_does_not_fit_beside_what_is_being_loaded_drives_nothing_out() -> None:
    one = host(100, A)
    # When B has been read, at 8 s, the fifth load of A is under way.
    assert [record.tier for _, record in loaded(one, A, A, A, A, A, B)] == [Tier.DRAM] * 5 + [Tier.SSD]
    assert [one.tier(model) for model in (A, B)] == [Tier.DRAM, Tier.SSD]

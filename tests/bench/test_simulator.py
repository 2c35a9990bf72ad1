"""`godwit bench sim`."""

from godwit.bench.simulator import SimulatorOptions, make_run, run_simulator


def test_every_size_is_simulated_whole() -> None:
    report = run_simulator(SimulatorOptions(servers=20, requests=200, repeat=1), lambda _: None)
    assert [row.servers for row in report.rows] == [10, 20]
    assert all(row.problems == 0 and row.requests_per_s > 0 for row in report.rows)


def test_the_same_seed_gives_the_same_run() -> None:
    assert make_run(10, 100, 3) == make_run(10, 100, 3)
    assert make_run(10, 100, 3) != make_run(10, 100, 4)
    assert len(make_run(10, 100, 3).asks) == 100

"""The scenes. None of their decisions hangs on which of two things is a little sooner."""

from tests.sim.parity import Ask, Drain, Gone, Has, Kill, Model, Move, Moved, Over, Scene, Server

A, B = Model("a", 200_000), Model("b", 1_200_000)
SMALLER_B = Model("b", 600_000)


def figure3(policy: str, num_output: int) -> Scene:
    """A runs on server 2, which has B's checkpoint near; B is asked for. Server 1 has A's near.

    B comes from memory in 1.2 s, from SSD in 3.2 s, A from memory in 0.2 s.
    """
    return Scene(
        f"figure 3 under {policy}",
        (A, B),
        (Server("w1", None, dram=("a",), dram_bytes=A.num_bytes), Server("w2", "a", dram=("b",))),
        (
            Ask("A", "a", num_prompt=200, num_output=num_output),
            Has("A", 15),
            Ask("B", "b", num_prompt=50, num_output=8),
            Over("B"),
            Over("A"),
        ),
        policy,
    )


BATCH_AND_DRAIN = Scene(
    "two requests share an instance, one moves to where a third runs, then that server is drained",
    (A,),
    (Server("w1", "a"), Server("w2", "a")),
    (
        Ask("A", "a", num_prompt=200, num_output=110),
        Has("A", 1),
        Ask("B", "a", num_prompt=100, num_output=75),
        Has("B", 1),
        Ask("C", "a", num_prompt=50, num_output=45),
        Has("C", 10),
        Move("A", "w2"),
        Moved(1),
        Over("B"),
        Over("C"),
        Drain("w2"),
        Moved(2),
        Gone("w2"),
        Over("A"),
    ),
    slots=3,
)

KILLED = Scene(
    "a worker is killed: failover to another, whose SSD has the model, and one more load behind that",
    (A, SMALLER_B),
    (Server("w1", "a"), Server("w2", None)),
    (
        Ask("A", "a", num_prompt=200, num_output=25),
        Has("A", 15),
        Kill("w1"),
        Gone("w1"),
        Ask("B", "b", num_prompt=50, num_output=8),
        Over("A"),
        Over("B"),
    ),
    instances=2,
)

SCENES = (
    figure3("live_migration", 80),
    figure3("preemption", 80),
    figure3("locality", 30),
    BATCH_AND_DRAIN,
    KILLED,
)

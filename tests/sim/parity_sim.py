"""Plays a scene in the simulator."""

from collections.abc import Callable, Sequence

from godwit.errors import GodwitError
from godwit.protocol.entry import MoveRecord
from godwit.sim.draws import HashedDraws
from godwit.sim.loop import Loop
from godwit.sim.notes import Notes
from godwit.sim.spec import ClusterSpec, HostSpec, ModelSpec, Policies, Rates, WorkerSpec
from godwit.sim.world import Life, World
from godwit.types import (
    Alternative,
    ModelName,
    Promise,
    RequestId,
    Sampling,
    Tier,
    TokenId,
    TokenPrompt,
    WorkerId,
)
from tests.sim.parity import (
    CHUNK_TOKENS,
    CONTEXT_TOKENS,
    INSTANCE_BYTES,
    PATIENCE_S,
    Ask,
    Client,
    Drain,
    Gone,
    Has,
    Kill,
    Move,
    Moved,
    Over,
    Played,
    Scene,
    Server,
    Step,
    played,
)
from tests.sim.traced import Change, tracing

MAX_EVENTS = 1_000_000


class Receiver:
    """A client's `ports.Sink`, which remembers when it got what."""

    def __init__(self, ask: Ask, loop: Loop) -> None:
        self.ask = ask
        self.asked_s = loop.now_s
        self.times_s: list[float] = []
        self.is_over = False
        self._loop = loop

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """It has started."""

    def tokens(
        self,
        first_index: int,  # noqa: ARG002 -- part of the contract
        ids: Sequence[TokenId],
        texts: Sequence[bytes],  # noqa: ARG002 -- part of the contract
        alternatives: Sequence[tuple[Alternative, ...]],  # noqa: ARG002 -- part of the contract
    ) -> None:
        self.times_s += [self._loop.now_s] * len(ids)

    def approximate(self, broken: Sequence[Promise]) -> None:
        raise AssertionError(f"{self.ask.label} was not continued exactly: {broken}")

    def flush(self) -> None:
        """Nothing is written anywhere."""

    def finished(self, reason: str) -> None:  # noqa: ARG002 -- part of the contract
        self.is_over = True

    def failed(self, error: GodwitError) -> None:
        raise AssertionError(f"{self.ask.label} failed: {error.message}")


class SimulatedPlay:
    """One scene in a world of its own."""

    def __init__(self, scene: Scene) -> None:
        self._records: list[MoveRecord] = []
        self._changes: list[Change] = []
        self._receivers: dict[str, Receiver] = {}
        self._notes = Notes(10_000)
        self._scene = scene
        self._world = World(
            _cluster(scene),
            Policies(policy=scene.policy, patience_s=PATIENCE_S),
            Life(),
            HashedDraws(),
            lambda: 0.5,
            lambda *_: None,
            self._records.append,
            self._notes,
        )

    def play(self) -> Played:
        """Let all steps happen."""
        loop = self._world.loop
        with tracing(self._changes.append, loop.now):
            for server in self._scene.servers:
                self._world.join(WorkerId(server.name))
            self._until(lambda: len(self._world.head.control.members) == len(self._scene.servers))
            for step in self._scene.steps:
                self._take(step)
        clients = [
            Client(label, one.ask.label, one.asked_s, tuple(one.times_s))
            for label, one in self._receivers.items()
        ]
        return played(self._notes.entries(), self._records, clients, [self._changes])

    def _take(self, step: Step) -> None:
        world, control, receivers = self._world, self._world.head.control, self._receivers
        match step:
            case Ask(label, model, num_prompt, num_output):
                receiver = receivers[label] = Receiver(step, world.loop)
                sampling = Sampling(0, num_output, temperature=0, ignore_eos=True)
                prompt = TokenPrompt((1,) * num_prompt)
                control.start(RequestId(label), ModelName(model), prompt, sampling, receiver)
            case Has(label, num_tokens):
                self._until(lambda: len(receivers[label].times_s) >= num_tokens)
            case Over(label):
                self._until(lambda: receivers[label].is_over)
            case Move(label, to):
                control.ask_move(RequestId(label), WorkerId(to), None, lambda _: None)
            case Moved(num_moves):
                self._until(lambda: len(self._records) >= num_moves)
            case Drain(worker):
                control.ask_drain(WorkerId(worker), None)
            case Kill(worker):
                world.crash(WorkerId(worker))
            case Gone(worker):
                self._until(lambda: worker not in control.members)

    def _until(self, is_so: Callable[[], bool]) -> None:
        loop = self._world.loop
        while not is_so():
            assert loop.num_events < MAX_EVENTS, f"waits for ever: {self._notes.entries()[-3:]}"
            loop.step()


def _cluster(scene: Scene) -> ClusterSpec:
    models = tuple(
        ModelSpec(ModelName(one.name), one.num_bytes, INSTANCE_BYTES, CONTEXT_TOKENS) for one in scene.models
    )
    rates = Rates((scene.decode_s,), scene.prefill_tps, CHUNK_TOKENS)
    return ClusterSpec(
        tuple(_host(scene, server) for server in scene.servers),
        tuple(
            WorkerSpec(
                WorkerId(server.name),
                server.name,
                scene.device_bytes,
                scene.slots,
                rates,
                loaded=() if server.device is None else (ModelName(server.device),),
            )
            for server in scene.servers
        ),
        models,
    )


def _host(scene: Scene, server: Server) -> HostSpec:
    on_device = () if server.device is None else (server.device,)
    emulated = {Tier.SSD: scene.ssd_bytes_per_s, Tier.DRAM: scene.dram_bytes_per_s}
    return HostSpec(
        server.name,
        # What comes from SSD passes the memory on its way.
        {Tier.SSD: 1 / sum(1 / rate for rate in emulated.values()), Tier.DRAM: scene.dram_bytes_per_s},
        server.dram_bytes,
        in_dram=tuple(ModelName(name) for name in (*server.dram, *on_device)),
        on_ssd=tuple(ModelName(model.name) for model in scene.models),
        emulated_tiers=tuple(emulated.items()),
    )

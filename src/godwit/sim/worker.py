"""One life of one worker in virtual time: the real WorkerRequests over modelled instances."""

from collections.abc import Callable, Mapping, Sequence

from godwit.ports import EngineEvent, Failed
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    FromHead,
    Hello,
    KvPart,
    Leave,
    Left,
    PeerHello,
    PeerMessage,
    Relayed,
    Welcome,
)
from godwit.protocol.model_messages import AddModel, Load, ModelChanged, RemoveModel, Unload
from godwit.protocol.worker import WorkerRequests
from godwit.sim.adding import SimAddedModels
from godwit.sim.draws import Draws
from godwit.sim.engine import Meter
from godwit.sim.host import Host
from godwit.sim.instances import ModelledInstances
from godwit.sim.loop import Event, Loop
from godwit.sim.spec import ModelSpec, Rates, WorkerSpec
from godwit.types import LoadRecord, ModelInfo, ModelName, WorkerId

TICK_S = 0.1
SendHead = Callable[[Message], None]
SendPeer = Callable[[WorkerId, PeerMessage | KvPart], None]


class SimWorker:
    """A worker's process. `is_linked` is its own view of its link to the head; `on_leave`: it was told to go.

    Its clock may be off by `skew_s`: only differences of its own times mean anything. `addable` are the
    models whose files it could get; those of another `variant` are other checkpoints under the same names.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        incarnation: int,
        host: Host,
        models: Sequence[ModelSpec],
        loop: Loop,
        draws: Draws,
        meter: Meter,
        send_head: SendHead,
        send_peer: SendPeer,
        is_direct: Callable[[WorkerId], bool],
        on_leave: Callable[[], None],
        cleanup_s: Callable[[], float],
        lump_tokens: int = 1,
        skew_s: float = 0.0,
        addable: Mapping[ModelName, ModelSpec] | None = None,
        variant: str = "",
    ) -> None:
        self.spec = spec
        self.incarnation = incarnation
        self.is_up = True
        self.is_linked = False
        self._host = host
        self._loop = loop
        self._send = send_head
        self._on_leave = on_leave
        self._lump_tokens = lump_tokens
        self._timer: Event | None = None
        self._skew_s = skew_s
        infos = {model.name: _info(model, spec.context_tokens, variant) for model in models}
        self.instances = ModelledInstances(
            loop,
            host,
            infos,
            spec.slots,
            spec.device_bytes,
            draws,
            self._rates,
            cleanup_s,
            self._on_step,
            self._on_change,
            self._lump,
            meter,
        )
        self._added = SimAddedModels(
            addable or {},
            lambda model: _info(model, spec.context_tokens, variant),
            self.instances,
            loop,
            self._send_head,
        )
        self.requests = WorkerRequests(
            self.instances,
            self._send_head,
            lambda peer, _, message: send_peer(peer, message),
            is_direct,
            self._now,
        )
        for model in spec.loaded:
            self.instances.put(model)
        host.on_tier.append(self.instances.tier_changed)

    @property
    def name(self) -> WorkerId:
        return self.spec.name

    @property
    def hello(self) -> Hello:
        """How it would introduce itself now."""
        spec = self.spec
        return Hello(
            spec.name,
            self.incarnation,
            spec.slots,
            spec.device_bytes,
            self.instances.infos,
            f"sim://{spec.name}",
            emulated_tiers=self._host.spec.emulated_tiers,
            loading=self.instances.loading,
        )

    def from_head(self, message: FromHead) -> None:
        """Take a message of the head."""
        self.catch_up()
        match message:
            case Load(model):
                self.instances.load(model, lambda _: None)
            case Unload(model):
                self.instances.unload(model)
            case Relayed(peer, inner):
                self.requests.on_peer(peer, inner)
            case Leave():
                self._send_head(Left())
                self._on_leave()
            case AddModel():
                self._added.add(message)
            case RemoveModel():
                self._added.remove(message)
            case Welcome():
                pass
            case _:
                self.requests.on_head(message)
        self._watch()

    def from_peer(self, peer: WorkerId, message: PeerHello | PeerMessage | KvPart) -> None:
        """Take a message of another worker."""
        assert not isinstance(message, PeerHello)
        self.catch_up()
        self.requests.on_peer(peer, message)
        self._watch()

    def head_gone(self) -> None:
        """Its link to the head is dead."""
        if self.is_linked:
            self.is_linked = False
            self.requests.head_gone()

    def catch_up(self) -> None:
        """Tell of the tokens that have been drawn by now."""
        if self._lump_tokens > 1:
            for driver in list(self.instances.drivers.values()):
                driver.catch_up()

    def close(self) -> None:
        """The process is gone."""
        self.is_up = self.is_linked = False
        self.instances.close()
        self._host.on_tier.remove(self.instances.tier_changed)
        if self._timer is not None:
            self._timer.cancel()

    def break_engine(self, model: ModelName) -> None:
        """An engine cannot go on: its requests fail, and it is dropped."""
        self.instances.drivers[model].fail()

    def _now(self) -> float:
        return self._loop.now_s + self._skew_s

    def _lump(self) -> int:
        # A move needs each token as it is drawn.
        return 1 if self.requests.num_open_moves else self._lump_tokens

    def _rates(self, model: ModelName) -> Rates:
        return self.spec.model_rates.get(model, self.spec.rates)

    def _send_head(self, message: Message) -> None:
        if self.is_linked:
            self._send(message)

    def _on_step(self, events: Sequence[EngineEvent]) -> None:
        self.requests.on_step(events)
        for event in events:
            if isinstance(event, Failed) and event.model is not None:
                self.instances.drop(event.model)
        self._watch()

    def _on_change(self, info: ModelInfo, error: str | None, load: LoadRecord | None) -> None:
        self._send_head(ModelChanged(info, error, load))

    def _watch(self) -> None:
        """Let deadlines pass, as long as there are any."""
        if self._timer is None and self.requests.num_open_moves and self.is_up:
            self._timer = self._loop.after(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.is_up and self.is_linked:
            self.requests.tick(self._now())
            self._watch()


def _info(model: ModelSpec, context_tokens: int | None, variant: str) -> ModelInfo:
    return ModelInfo(
        model.name,
        f"digest of {variant}{model.name}",
        context_tokens or model.context_tokens,
        model.device_bytes,
        is_loaded=False,
        has_chat_template=False,
        checkpoint_bytes=model.checkpoint_bytes,
    )

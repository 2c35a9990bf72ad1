"""Simulates one run: a world, the clients that ask, and the servers that come and go."""

from collections import Counter, defaultdict
from functools import partial

import numpy as np

from godwit.protocol.entry import MoveRecord
from godwit.scheduling.early import REASON
from godwit.sim.client import AskingClient
from godwit.sim.draws import CountedDraws
from godwit.sim.notes import Notes
from godwit.sim.outcome import Answer, Outcome
from godwit.sim.sequence import decode_s
from godwit.sim.spec import GPU_JITTER_S, Ask, ClusterSpec, Run, Stay, WorkerSpec
from godwit.sim.truth import known_hazards
from godwit.sim.world import Life, World
from godwit.types import RequestId, Sampling, TokenPrompt, WorkerId

UNLIMITED_TOKENS = 1 << 20


def simulate(run: Run) -> Outcome:
    """Everything that comes of a run; the same run gives the same outcome."""
    return _Simulation(run).play()


def kv_bytes_per_token(cluster: ClusterSpec) -> float:
    """What a token's KV weighs on a link, where one byte stands for it; of the heaviest model."""
    return float(max((model.kv_bytes_per_token for model in cluster.models), default=0) or 1)


class _Work:
    """What engines computed for each request, so that what was computed before can be told."""

    def __init__(self) -> None:
        self._highest: defaultdict[RequestId, int] = defaultdict(int)
        self._spent_s: defaultdict[RequestId, float] = defaultdict(float)
        self._wasted_s: defaultdict[RequestId, float] = defaultdict(float)

    def add(self, sequence: RequestId, first: int, last: int, token_s: float) -> None:
        """An engine has computed, or drawn, the tokens [first, last) in so many seconds each."""
        request = RequestId(sequence.rpartition("@")[0])
        highest = self._highest[request]
        self._highest[request] = max(highest, last)
        seconds = (last - first) * token_s
        self._spent_s[request] += seconds
        self._wasted_s[request] += max(0, min(highest, last) - first) * token_s

    def wasted_s(self, request: RequestId, is_answer: bool) -> float:
        """Seconds spent on what had been computed before; all of them for what is nobody's answer."""
        return self._wasted_s[request] if is_answer else self._spent_s[request]


class _Simulation:
    def __init__(self, run: Run) -> None:
        self._run = run
        rng = np.random.default_rng(run.seed)
        self._work = _Work()
        self._moves: list[MoveRecord] = []
        self._planned_s: defaultdict[RequestId, float] = defaultdict(float)
        self._notes = Notes()
        self._clients: list[AskingClient] = []
        self._num_open = len(run.asks)

        def cleanup_s() -> float:
            return run.cleanup_s + (GPU_JITTER_S if rng.random() < run.jitter_share else 0.0)

        self._world = World(
            run.cluster,
            run.head,
            Life(run.head.dead_after_s, cleanup_s, run.lump_tokens, kv_bytes_per_token(run.cluster)),
            CountedDraws(),
            rng.random,
            self._work.add,
            self._moves.append,
            self._notes,
            hazards=known_hazards(run.head.knows, run.cluster.workers),
        )

    def play(self) -> Outcome:
        """Let everything happen that will."""
        run, world = self._run, self._world
        loop = world.loop
        for spec in run.cluster.workers:
            for stay in spec.stays:
                self._plan_stay(spec, stay)
        for number, ask in enumerate(run.asks):
            loop.at(ask.at_s, partial(self._ask, number, ask))
        while self._num_open and loop.next_s <= run.end_s:
            loop.step()
        moves = self._count_moves()
        for record in self._moves:
            self._planned_s[record.request] += sum(one.seconds for one in record.rounds)
        answers = tuple(self._answer(client, moves) for client in self._clients)
        return Outcome(
            answers,
            tuple(self._moves),
            tuple(self._notes.loads),
            world.network.num_bytes,
            loop.num_events,
            loop.now_s,
        )

    def _plan_stay(self, spec: WorkerSpec, stay: Stay) -> None:
        world, loop, run = self._world, self._world.loop, self._run
        if stay.start_s >= run.end_s:
            return
        loop.at(stay.start_s, lambda: world.join(spec.name))
        if stay.end_s < run.end_s:
            loop.at(stay.end_s, lambda: world.crash(spec.name, run.head.dead_after_s))
            if stay.notice_s > 0:
                loop.at(stay.end_s - stay.notice_s, lambda: self._notice(spec.name, stay.notice_s))

    def _notice(self, worker: WorkerId, notice_s: float) -> None:
        control = self._world.head.control
        if worker in control.members:
            control.ask_drain(worker, notice_s)

    def _ask(self, number: int, ask: Ask) -> None:
        control = self._world.head.control
        client = AskingClient(ask, number, self._world.loop, control.cancel, self._over)
        self._clients.append(client)
        if self._run.timeout_s < float("inf"):
            client.timeout = self._world.loop.after(self._run.timeout_s, client.give_up)
        prompt = TokenPrompt((0,) * ask.num_prompt)
        sampling = Sampling(seed=ask.num_output, max_tokens=UNLIMITED_TOKENS)
        expected = None if ask.expected_output is None else max(1, round(ask.expected_output))
        for receiver in client.receivers:
            control.start(receiver.request, ask.model, prompt, sampling, receiver, expected)

    def _over(self, _: AskingClient) -> None:
        self._num_open -= 1

    def _answer(self, client: AskingClient, moves: Counter[tuple[RequestId, str]]) -> Answer:
        ask, kills = client.ask, self._notes.kills
        names = [one.request for one in client.receivers]
        request = client.winner or names[0]
        worker = self._notes.worker_of.get(request)
        token_s = 0.0 if worker is None else self._decode_s(worker, ask)
        is_over = client.end_s is not None or client.problem is not None
        return Answer(
            ask,
            client.first_s,
            client.end_s,
            client.num_tokens,
            client.num_tokens * token_s,
            sum(moves[name, "done"] for name in names),
            sum(moves[name, "early"] for name in names),
            sum(moves[name, "failover"] - kills[name] for name in names),
            sum(kills[name] for name in names),
            client.problem if is_over else "unfinished",
            sum(self._work.wasted_s(name, name == client.winner) for name in names),
            sum(self._planned_s[name] for name in names),
        )

    def _count_moves(self) -> Counter[tuple[RequestId, str]]:
        counts: Counter[tuple[RequestId, str]] = Counter()
        for record in self._moves:
            if record.method == "failover":
                counts[record.request, "failover"] += 1
            elif record.outcome == "done":
                counts[record.request, "done"] += 1
                counts[record.request, "early"] += record.reason.startswith(REASON)
        return counts

    def _decode_s(self, worker: WorkerId, ask: Ask) -> float:
        spec = self._world.specs[worker]
        return decode_s(spec.model_rates.get(ask.model, spec.rates), 1)

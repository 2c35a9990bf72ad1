"""Stand-in until the world is there: a queue for each cluster."""

import heapq

from godwit.sim.outcome import Answer, Load, Outcome
from godwit.sim.spec import Run
from godwit.types import LoadRecord, Tier


def simulate(run: Run) -> Outcome:
    """First come, first served, by whichever worker is free first."""
    free = [(0.0, number) for number in range(len(run.cluster.workers))]
    heapq.heapify(free)
    answers, loads = [], []
    end_s = 0.0
    for ask in run.asks:
        at_s, number = heapq.heappop(free)
        worker = run.cluster.workers[number]
        model = run.cluster.models[0]
        host = next(host for host in run.cluster.hosts if host.name == worker.host)
        load_s = 0.0 if worker.loaded else model.checkpoint_bytes / host.bytes_per_s[Tier.SSD]
        rates = worker.rates
        start_s = max(at_s, ask.at_s) + load_s
        first_s = start_s + ask.num_prompt / rates.prefill_tps
        decode_s = ask.num_output * rates.decode_s[0]
        end_s = first_s + decode_s
        heapq.heappush(free, (end_s, number))
        loads.append(Load(start_s, worker.name, LoadRecord(Tier.SSD, model.checkpoint_bytes, 0.0, load_s)))
        answers.append(Answer(ask, first_s, end_s, ask.num_output, decode_s, num_losses=number % 2))
    return Outcome(tuple(answers), (), tuple(loads), 0.0, 0.0, 0, len(answers), end_s)

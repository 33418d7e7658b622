"""What really happened has the simulator's names and the simulator's order."""

from __future__ import annotations

import asyncio

import pytest
import torch

import splitfl
from splitfl.planning import simulate, stage_costs
from splitfl.planning.cost import Link, StageCost
from splitfl.run.actor import Actor
from splitfl.run.metrics import COMPUTE, Recorder
from splitfl.run.pool import Threads
from splitfl.run.work import Work
from splitfl.schedule import GENERATORS, Topology, build
from splitfl.transport import memory_pair

CLIENTS = (0, 1)


def predicted(schedule, topology):
    costs = stage_costs(
        [StageCost(forward=1.0, backward=1.0, weight=1.0, activation=1)] * topology.stages,
        links={(one, other): Link(10.0, 0.1) for one in topology.actors for other in topology.actors},
        slots=dict.fromkeys(topology.actors, 4),
    )
    return simulate(schedule, topology, costs)


async def measured(blueprint, schedule, topology):
    """Run one mini-batch with an actor for each part, joined by channels in memory; the events of all."""
    channels = {actor: {} for actor in topology.actors}
    for index, one in enumerate(topology.actors):
        for other in topology.actors[index + 1 :]:
            channels[one][other], channels[other][one] = memory_pair(other, one)
    recorder, pools, tasks = Recorder(), [], []
    for name in topology.actors:
        pools.append(Threads(2))
        actor = Actor(name, blueprint, pool=pools[-1], recorder=recorder, channels=channels[name])
        actor.hold(topology, {})
        samples = dict.fromkeys(topology.clients, len(topology.micro(0)))
        feed = lambda _: ({"x": torch.zeros(1, 6, dtype=torch.float64)}, torch.zeros(1, dtype=torch.long))  # noqa: E731
        work = Work(topology=topology, turn=1, step=0, seed=1, samples=samples, feed=feed)
        tasks.append(actor.run(schedule[name], work))
    await asyncio.gather(*tasks)
    for ends in channels.values():
        for end in ends.values():
            await end.close()
    for pool in pools:
        await asyncio.to_thread(pool.close)
    return [event for _, event in recorder.events]


def lanes(events, topology):
    """The compute instructions of each actor and client, by start."""
    found = {}
    for event in sorted(events, key=lambda event: event.start):
        if event.instruction.op in COMPUTE:
            found.setdefault((event.actor, event.instruction.client), []).append(event.instruction)
    return found


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("placement", [("client", "server"), ("client", "edge", "server")], ids=["two", "chain"])
def test_the_recorded_order_is_the_simulated_one(bench, generator, placement):
    stages = len(placement)
    topology = Topology(clients=CLIENTS, placement=placement, micro_batches=3)
    schedule = build(GENERATORS[generator], topology)
    made = bench.job(bench.Mlp, ("fc1", "fc2")[: stages - 1], splitfl.methods.splitfed_v1())
    events = bench.run(measured(made.blueprint(), schedule, topology))
    simulated = predicted(schedule, topology).events
    assert lanes(events, topology) == lanes(simulated, topology)
    names = {(event.actor, event.instruction) for event in simulated}
    assert {(event.actor, event.instruction) for event in events} == names
    assert len(events) == len(simulated)
    sent = [event for event in events if event.instruction.kind is not None]
    assert all(event.nbytes > 0 for event in sent)


def test_memory_stays_flat_over_many_rounds(bench):
    """Live tensors after 10 rounds and after 40 are the same number."""
    import gc

    counts = []

    def count(record):
        if record.round in (10, 40):
            gc.collect()
            counts.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))

    made = bench.job(bench.Mlp, "fc1", splitfl.methods.pipar(micro_batches=2))
    splitfl.simulate(made, clients=[bench.dataset(8), bench.dataset(8)], rounds=40, on_round=count)
    assert counts[1] <= counts[0] + 5

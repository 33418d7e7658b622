"""Rounds that overlap, and rounds that do not wait: the weights of plain loops that add up what was learned."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import splitfl
from splitfl.data.batches import Batches, plan
from splitfl.run.seeds import derive

SAMPLES = (8, 21, 13)


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=samples) for samples in SAMPLES]


def trained(made, start, data, client, number):
    """The whole model's weights after `client` has trained on its data, from `start`, in its turn `number`."""
    model = made.build_model()
    model.load_state_dict(start)
    optimizer = made.optimizer(model.parameters())
    seed = derive(derive(made.seed, "round", number), "data", client)
    batches = Batches(data, sizes=plan(len(data), batch_size=made.batch_size), seed=seed, shuffle=True)
    for step in range(len(batches)):
        x, y = batches[step]
        made.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def copy_of(state):
    return {name: value.clone() for name, value in state.items()}


def put_onto(now, learned):
    """`now` and the mean of what was learned; `learned`: (samples, share, from, to)."""
    total = sum(samples for samples, *_ in learned)
    return {
        name: value + sum(n / total * share * (after[name] - before[name]) for n, share, before, after in learned)
        for name, value in now.items()
    }


@pytest.mark.parametrize("split", [True, False])
def test_every_overlapped_round_begins_with_the_weights_of_the_round_before_the_last(bench, clients, split):
    """w[r] = w[r - 1] + mean(what was learned from w[r - 2]): a staleness of one, but for the first, which has none."""
    rounds = 4
    made = bench.job(bench.Mlp, "relu", splitfl.methods.pipe_sgd(split=split))
    weights = [copy_of(made.build_model().state_dict())]
    for number in range(1, rounds + 1):
        start = weights[max(number - 2, 0)]
        learned = [
            (len(data), 1.0, start, trained(made, start, data, client, number)) for client, data in enumerate(clients)
        ]
        weights.append(put_onto(weights[-1], learned))
    result = splitfl.simulate(made, clients=clients, rounds=rounds)
    assert bench.difference(result.state, weights[-1]) < 1e-12
    in_step = splitfl.simulate(bench.job(bench.Mlp, "relu", "splitfed-v1"), clients=clients, rounds=rounds)
    assert bench.difference(result.state, in_step.state) > 1e-3


@pytest.mark.parametrize(("buffer", "staleness"), [(1, 0.5), (2, 1.0), (2, 0.0)])
def test_what_arrives_counts_by_the_rounds_that_went_by(bench, clients, buffer, staleness):
    rounds = 7
    made = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=buffer, staleness=staleness))
    result = splitfl.simulate(made, clients=clients, rounds=rounds, devices=["laptop", "raspberry-pi-3", "laptop"])
    now = copy_of(made.build_model().state_dict())
    begun = dict.fromkeys(range(len(clients)), (now, 0))
    oldest = 0
    for number, record in enumerate(result.history.rounds, 1):
        arrived = [int(name.removeprefix("c")) for name in record.participants]
        assert len(arrived) == buffer
        learned = []
        for client in arrived:
            start, version = begun[client]
            oldest = max(oldest, number - 1 - version)
            after = trained(made, start, clients[client], client, version + 1)
            learned.append((SAMPLES[client], (number - version) ** -staleness, start, after))
        now = put_onto(now, learned)
        begun |= dict.fromkeys(arrived, (now, number))
    assert bench.difference(result.state, now) < 1e-12
    assert oldest >= 1


def test_a_slow_client_delivers_less_often_and_holds_nobody_up(bench, clients):
    made = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=1))
    devices = ["laptop", "raspberry-pi-3", "laptop"]
    result = splitfl.simulate(made, clients=clients, rounds=20, devices=devices, link="wifi-50")
    delivered = [name for record in result.history.rounds for name in record.participants]
    assert 1 <= delivered.count("c1") < delivered.count("c2") < delivered.count("c0")
    waiting = splitfl.simulate(
        bench.job(bench.Mlp, "relu", "splitfed-v1"), clients=clients, rounds=1, devices=devices, link="wifi-50"
    )
    mean = sum(record.seconds for record in result.history.rounds) / 20
    assert mean < waiting.history.rounds[0].seconds / 2


def test_a_buffer_for_all_is_a_round_in_step(bench, clients):
    made = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=len(SAMPLES)))
    waiting = splitfl.simulate(bench.job(bench.Mlp, "relu", "splitfed-v1"), clients=clients, rounds=3)
    assert bench.difference(splitfl.simulate(made, clients=clients, rounds=3).state, waiting.state) == 0


@pytest.mark.parametrize("method", [splitfl.methods.asynchronous(buffer=2), splitfl.methods.pipe_sgd()])
def test_the_virtual_clock_gives_the_same_bits_in_every_run(bench, clients, method):
    one, two = (splitfl.simulate(bench.job(bench.Mlp, "relu", method), clients=clients, rounds=5) for _ in range(2))
    assert bench.difference(one.state, two.state) == 0
    assert one.history.rounds == two.history.rounds


def test_overlapped_rounds_give_the_same_bits_over_grpc(bench, clients):
    made = bench.job(bench.Mlp, "relu", "pipe-sgd")
    simulated = splitfl.simulate(made, clients=clients, rounds=4)
    named = {f"c{client}": each for client, each in enumerate(clients)}
    real, words = bench.run(bench.over_grpc(made.blueprint(), named, rounds=4))
    assert bench.difference(real.model, simulated.state) == 0
    assert set(words.values()) == {"training is complete after 4 rounds"}


def held_back(until):
    """A client whose first activations go out only when `until` is set."""

    async def end(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                await until.wait()
                return await told(address, payload)

            channel.send = send
            return channel

        return await plain(name, data, connecting)

    return end


def test_real_rounds_go_on_while_a_client_is_at_work(bench, clients):
    """c1 sends nothing before three rounds are over; then it delivers, three rounds old, and all hear the last word."""
    named = {f"c{client}": each for client, each in enumerate(clients)}
    blueprint = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=1)).blueprint()

    async def work():
        until = asyncio.Event()

        def on_round(record):
            if record.round == 3:
                until.set()

        ends = {"c1": held_back(until)}
        return await bench.over_grpc(blueprint, named, rounds=60, ends=ends, on_round=on_round)

    found, words = bench.run(work())
    delivered = [name for record in found.rounds for name in record.participants]
    assert len(found.rounds) == 60
    assert "c1" not in delivered[:3]
    assert {"c0", "c1", "c2"} == set(delivered)
    assert not any(record.failures for record in found.rounds)
    assert set(words.values()) == {"training is complete after 60 rounds"}


def test_a_client_that_is_still_at_work_when_training_ends_hears_so(bench, clients):
    named = {f"c{client}": each for client, each in enumerate(clients)}
    blueprint = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=1)).blueprint()

    async def work():
        never = asyncio.Event()
        return await bench.over_grpc(blueprint, named, rounds=4, ends={"c1": held_back(never)})

    found, words = bench.run(work())
    assert "c1" not in {name for record in found.rounds for name in record.participants}
    assert words["c1"] == "training is complete after 4 rounds"


def test_training_goes_on_without_a_lost_client(bench, clients):
    named = {f"c{client}": each for client, each in enumerate(clients)}
    blueprint = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=2)).blueprint()
    blueprint = replace(blueprint, deadlines=replace(blueprint.deadlines, rejoin=0.0))

    found, words = bench.run(bench.over_grpc(blueprint, named, rounds=5, ends={"c0": bench.leaving_at(1)}))
    assert [failure.client for record in found.rounds for failure in record.failures] == ["c0"]
    assert all(record.participants == ("c1", "c2") for record in found.rounds)
    assert isinstance(words["c0"], Exception)


def test_a_stopped_training_goes_on_with_new_turns(bench, clients, tmp_path):
    named = {f"c{client}": each for client, each in enumerate(clients)}
    for method in ("async", "pipe-sgd"):
        made, folder = bench.job(bench.Mlp, "relu", method).blueprint(), tmp_path / method
        bench.run(bench.over_grpc(made, named, rounds=2, checkpoint=folder))
        found, _ = bench.run(bench.over_grpc(made, named, rounds=4, checkpoint=folder, resume=True))
        assert [record.round for record in found.rounds] == [1, 2, 3, 4]
        assert all(record.participants for record in found.rounds)


def test_a_client_without_enough_samples_takes_no_part(bench, clients):
    made = bench.job(bench.Mlp, "relu", splitfl.methods.asynchronous(buffer=1), drop_last=True)
    result = splitfl.simulate(made, clients=[*clients, bench.dataset(3)], rounds=3)
    for record in result.history.rounds:
        assert [failure.client for failure in record.failures] == ["c3"]
        assert "takes no part" in record.failures[0].reason


def test_options_that_make_no_sense_are_refused(bench):
    with pytest.raises(ValueError, match=r"method async: buffer = 0, expected 1 or more"):
        splitfl.methods.asynchronous(buffer=0)
    with pytest.raises(ValueError, match=r"method async: staleness = -1, expected 0 or more"):
        splitfl.methods.asynchronous(staleness=-1)
    with pytest.raises(ValueError, match=r"method mine: rounds = 'buffered', expected \"in step\" unless"):
        splitfl.methods.Method(name="mine", schedule="sequential", shared_tail=True, rounds="buffered")
    with pytest.raises(splitfl.JobError, match=r'optimizer_state = "keep" with method \'async\': expected "reset"'):
        bench.job(bench.Mlp, "relu", "async", optimizer_state="keep").blueprint()

"""Features of one sample at several holders, beside plain PyTorch on the whole samples."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.aggregation import strategy_from
from splitfl.codecs import frame
from splitfl.data.batches import Batches, plan
from splitfl.data.linkage import common
from splitfl.run.blueprint import Deadlines
from splitfl.run.client import Client
from splitfl.run.linkage import pack
from splitfl.run.pool import Threads
from splitfl.run.seeds import derive
from splitfl.run.target import is_target
from splitfl.schedule import Kind
from splitfl.transport.memory import memory_pair
from splitfl.transport.messages import PROTOCOL, Hello, Refuse, Welcome

KEY = b"a secret that only holders know"
ROUNDS = 3
WIDTHS = (3, 2, 4)


class Three(nn.Module):
    """One input for each holder; the second has a layer more, and the head sees all."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 5), nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Linear(4, 3)
        self.mix, self.head = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, a, b, c):
        joined = torch.cat([torch.relu(self.one(a)), self.two(b), self.three(c)], dim=1)
        return self.head(torch.tanh(self.mix(joined)))


def whole(samples=24):
    generator = torch.Generator().manual_seed(5)
    features = [torch.randn(samples, width, generator=generator, dtype=torch.float64) for width in WIDTHS]
    return features, torch.randint(0, 3, (samples,), generator=generator)


def holdings(have=(range(0, 20), range(3, 24), range(1, 22)), labels_at=0):
    """Holders that have these rows, each in an order of its own."""
    features, labels = whole()
    held = []
    for holder, rows in enumerate(have):
        rows = torch.tensor(list(rows))[torch.randperm(len(rows), generator=torch.Generator().manual_seed(holder))]
        own = labels[rows] if holder == labels_at else None
        held.append(splitfl.Holding(features[holder][rows], rows.tolist(), labels=own))
    return held


@pytest.fixture
def make(bench):
    def job(cut="three", model=Three, **options):
        own = {name: options.pop(name) for name in ("labels_at", "micro_batches") if name in options}
        method = splitfl.methods.vertical_sl(**own)
        example = tuple(torch.zeros(2, width, dtype=torch.float64) for width in WIDTHS)
        return replace(
            bench.job(bench.Mlp, "fc1", "sl"),
            model=lambda: model().double(),
            example_input=example,
            cut=cut,
            method=method,
            **options,
        )

    return job


def unsplit(made, held):
    """The trained weights of the whole model, on the samples that all have, in the order of their digests."""
    shared = common([each.digests(KEY) for each in held])
    parts = [each.aligned(shared, KEY).tensors for each in held]
    owner = made.method.merging.labels_at
    data = TensorDataset(*(features for features, _ in parts), parts[owner][1])
    model = made.build_model()
    for number in range(1, ROUNDS + 1):
        optimizer = made.optimizer(model.parameters())
        sizes = plan(len(data), batch_size=made.batch_size, epochs=made.local_epochs or 1)
        seed = derive(derive(made.seed, "round", number), "data", "linked")
        batches = Batches(data, sizes=sizes, seed=seed, shuffle=True)
        for step in range(len(batches)):
            inputs, labels = batches[step]
            made.loss(model(*inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def over_grpc(bench, made, held, *, keys=(KEY,) * 3, ends=None, rounds=ROUNDS, **options):
    def end(key):
        return lambda name, data, plain, _: plain(name, data, link_key=key)

    named = {f"c{client}": each for client, each in enumerate(held)}
    chosen = {name: end(key) for name, key in zip(named, keys, strict=True)} | (ends or {})
    return bench.run(bench.over_grpc(made.blueprint(), named, rounds=rounds, ends=chosen, **options))


@pytest.mark.parametrize("cut", ["three", ["three", "mix"]], ids=["one tail", "two stages of it"])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("labels_at", [0, 2])
def test_it_is_the_whole_model_on_whole_samples(bench, make, cut, micro_batches, labels_at):
    made = make(cut, labels_at=labels_at, micro_batches=micro_batches, batch_size=5, local_epochs=2)
    held = holdings(labels_at=labels_at)
    trained, _ = over_grpc(bench, made, held)
    assert bench.difference(trained.model, unsplit(made, held)) < 1e-12
    assert not trained.rounds[-1].failures


def test_in_memory_it_is_the_same_to_the_bit(bench, make):
    made, held = make(batch_size=5), holdings()
    result = splitfl.simulate(made, clients=held, rounds=ROUNDS, test=TensorDataset(*whole()[0], whole()[1]))
    key = f"{derive(made.seed, 'linkage'):032x}".encode()
    trained, _ = over_grpc(bench, made, held, keys=(key,) * 3)
    assert bench.difference(trained.model, result.state) == 0
    assert result.history.rounds[-1].accuracy is not None


def test_a_single_shared_sample_is_trained_on(bench, make):
    made, held = make(), holdings((range(0, 8), range(7, 16), range(4, 12)))
    trained, _ = over_grpc(bench, made, held)
    assert bench.difference(trained.model, unsplit(made, held)) < 1e-12
    assert [record.train_loss is not None for record in trained.rounds] == [True] * ROUNDS


def test_no_shared_sample_is_an_error_that_says_where_to_look(bench, make):
    with pytest.raises(splitfl.SplitflError, match=r"at all 3 holders \(c0: 8, c1: 8, c2: 4; .*c0 and c2 share 4"):
        over_grpc(bench, make(), holdings((range(0, 8), range(8, 16), range(4))))
    with pytest.raises(splitfl.SplitflError, match=r"no record is at all 3 holders .* and the same linkage key"):
        over_grpc(bench, make(), holdings(), keys=(KEY, KEY, KEY + b"?"))


def test_labels_come_from_their_holder_only(bench, make):
    seen = []

    def watching(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                if address.value.kind is Kind.ACT:
                    seen.append((name, sorted(frame.decode(b"".join(payload)))))
                return await told(address, payload)

            channel.send = send
            return channel

        return plain(name, data, connecting, link_key=KEY)

    over_grpc(bench, make(labels_at=1), holdings(labels_at=1), ends=dict.fromkeys(("c0", "c1", "c2"), watching))
    labelled = {name for name, tensors in seen if any(map(is_target, tensors))}
    assert labelled == {"c1"}
    assert {name: [each for each in tensors if not is_target(each)] for name, tensors in seen} == {
        "c0": ["relu"], "c1": ["two_1"], "c2": ["three"],
    }  # fmt: skip


def test_a_holder_that_comes_back_leaves_no_trace(bench, make):
    made = make(deadlines=Deadlines(step=5.0, round=20.0, rejoin=10.0), batch_size=5)
    held = holdings()
    lost = []

    def breaking(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                if address.step == 2 and not lost:
                    lost.append(name)
                    await channel.close()
                return await told(address, payload)

            channel.send = send
            return channel

        return plain(name, data, connecting, patience=10.0, link_key=KEY)

    trained, _ = over_grpc(bench, made, held, ends={"c1": breaking})
    assert lost == ["c1"]
    undisturbed, _ = over_grpc(bench, made, held)
    assert bench.difference(trained.model, undisturbed.model) == 0
    assert not any(record.failures for record in trained.rounds)


def test_without_a_holder_nobody_goes_on(bench, make):
    made = make(deadlines=Deadlines(step=3.0, round=20.0, rejoin=0.0), batch_size=5)

    def leaving(name, data, plain, open_channel):
        async def keyed(name, data, connecting):
            return await plain(name, data, connecting, link_key=KEY)

        return bench.leaving_at(1)(name, data, keyed, open_channel)

    with pytest.raises(splitfl.SplitflError, match=r"round 1: .*c0: no sample is whole without c2"):
        over_grpc(bench, made, holdings(), ends={"c2": leaving})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: [held[1], held[0], held[2]], r"c[01] holds features float64\[[23]\], expected float64\[[23]\]"),
        (
            lambda held: [held[0], TensorDataset(torch.zeros(4, 2)), held[2]],
            "c1: method vertical-sl .* got TensorDataset",
        ),
        (lambda held: held[:2], r"clients = 2 with method vertical-sl: expected 3, one for each input .*\(a, b, c\)"),
        (lambda _: holdings(labels_at=1), "c0 has no labels, expected them there"),
    ],
)
def test_data_that_does_not_fit_is_refused(make, change, message):
    with pytest.raises(splitfl.SplitflError, match=message):
        splitfl.simulate(make(), clients=change(holdings()), rounds=1)


def test_settings_that_do_not_fit_are_refused(make):
    with pytest.raises(splitfl.JobError, match=r"labels_at = 3 .* expected 0 to 2, .* that hold a, b, c"):
        make(labels_at=3).blueprint()
    with pytest.raises(splitfl.SplitflError, match="'mix', which crosses the cut, is made of a, b, c"):
        make("mix").blueprint()


def test_each_layer_has_one_holder_so_there_is_no_strategy(make):
    with pytest.raises(splitfl.JobError, match="strategy = FedAdam with method vertical-sl: each layer has one holder"):
        make(strategy=strategy_from("FedAdam", clients=3))


def test_labels_that_the_loss_cannot_take_are_their_holders_fault(bench, make):
    held = holdings(labels_at=1)
    held[1] = splitfl.Holding(held[1].features, held[1].ids, labels=held[1].labels + 7)
    with pytest.raises(splitfl.SplitflError, match=r"c1: .* with its labels: IndexError: Target .* is out of bounds"):
        over_grpc(bench, make(labels_at=1), held)


def test_a_holder_that_is_welcomed_again_takes_what_is_linked_then(bench, make):
    """The server was started again, and another holder came with other records."""
    made, held = make(), holdings()
    blueprint = made.blueprint()
    seen = []

    async def session(client, rows):
        near, far = memory_pair("server", "c1")
        digests = sorted(held[1].digests(KEY)[row] for row in rows)
        task = asyncio.create_task(client._enroll(near))
        await far.hear(timeout=5, what="the hello")
        await far.tell(Welcome("s", 1, 3, links=pack(digests)))
        turn = await task
        seen.append(len(turn._dataset))

    async def twice():
        pool = Threads(1)
        client = Client(blueprint, held[1], name="c1", connect=None, pool=pool, link_key=KEY)
        await session(client, range(10))
        await session(client, range(4, 21))
        pool.close()

    bench.run(twice())
    assert seen == [10, 17]


def test_an_automatic_cut_leaves_each_input_its_layers(make):
    assert make("auto").blueprint().partition.cuts == ("three",)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("", "'bad' cannot be linked: 0 digests for 21 samples, expected one for each"),
        ("?", "'bad' cannot be linked: the digests of the records are not base64"),
    ],
)
def test_digests_that_are_none_are_refused(bench, make, links, message):
    made = make(deadlines=Deadlines(enrollment=2.0))
    heard = []

    async def bad(name, data, plain, open_channel):
        channel = await open_channel()
        said = json.dumps(made.blueprint().fingerprints())
        await channel.tell(Hello(PROTOCOL, "bad", said, len(data), "test", links=links))
        heard.append(await channel.hear(timeout=5, what="the refusal"))

    with pytest.raises(splitfl.SplitflError, match="2 of 3 clients enrolled"):
        over_grpc(bench, made, holdings(), ends={"c1": bad})
    (word,) = heard
    assert isinstance(word, Refuse)
    assert (word.code, message in word.message) == ("links", True)


def test_a_holder_without_a_key_says_so(bench, make):
    made = make(deadlines=Deadlines(enrollment=1.0))
    words = []

    async def keyless(name, data, plain, open_channel):
        try:
            await plain(name, data)
        except splitfl.SplitflError as error:
            words.append(str(error))
            raise

    with pytest.raises(splitfl.SplitflError, match="2 of 3 clients enrolled"):
        over_grpc(bench, made, holdings(), ends={"c1": keyless})
    assert words == ["a linkage key of 0 bytes, expected 16 or more that the holders share"]


def test_int8_crosses_with_less(bench, make):
    made, held = make(batch_size=5), holdings()
    plain = splitfl.simulate(made, clients=held, rounds=1)
    small = splitfl.simulate(replace(made, codec=splitfl.codec(activation="int8")), clients=held, rounds=1)
    assert small.history.rounds[0].bytes_up < plain.history.rounds[0].bytes_up

"""Labels that stay at home."""

from __future__ import annotations

import pytest

import splitfl
from splitfl.codecs import frame
from splitfl.run.target import is_target

SAMPLES = (8, 12, 5)
ROUNDS = 2


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_u_shaped_is_the_unsplit_model_whatever_returns_to_the_client(bench, clients, shared, micro_batches):
    method = splitfl.methods.u_shaped(shared_body=shared, micro_batches=micro_batches)
    same = "splitfed-v2" if shared else "fedavg"
    cut = ["fc1", "fc2"]
    u_shaped = splitfl.simulate(bench.job(bench.Mlp, cut, method), clients=clients, rounds=ROUNDS)
    if not shared:
        plain = splitfl.simulate(bench.job(bench.Mlp, cut, same), clients=clients, rounds=ROUNDS)
        assert bench.difference(u_shaped.state, plain.state) < 1e-12
    else:  # the head is averaged here, and shared in SplitFed V2: with one client there is no difference
        one = clients[:1]
        alone = splitfl.simulate(bench.job(bench.Mlp, cut, method), clients=one, rounds=ROUNDS)
        plain = splitfl.simulate(bench.job(bench.Mlp, cut, same), clients=one, rounds=ROUNDS)
        assert bench.difference(alone.state, plain.state) < 1e-12


def test_labels_never_leave_the_client(bench, clients):
    blueprint = bench.job(bench.Mlp, ["fc1", "fc2"], "u-shaped").blueprint()
    seen = []

    async def watched(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                seen.append((address.value.kind, list(frame.decode(b"".join(payload)))))
                return await told(address, payload)

            channel.send = send
            return channel

        return await plain(name, data, connecting)

    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(blueprint, named, rounds=1, ends=dict.fromkeys(named, watched)))
    assert {str(kind) for kind, _ in seen} == {"act", "grad", "params"}
    assert not [name for _, names in seen for name in names if is_target(name)]
    assert trained.rounds[0].train_loss > 0  # known from the clients' reports


def test_a_u_shape_needs_two_cuts(bench):
    with pytest.raises(splitfl.JobError, match=r"cut = 'fc1': method u-shaped: 2 stages, expected 3 or more: give 2"):
        bench.job(bench.Mlp, "fc1", "u-shaped")

"""Quorum, grace, and late clients: a round closes without them, and their work is refused as stale."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import splitfl
from splitfl.errors import SplitflError
from splitfl.run.stragglers import Stragglers

SEPARATE = {"splitfed-v1": splitfl.methods.splitfed_v1(), "pipar": splitfl.methods.pipar(micro_batches=2)}
TOGETHER = {"splitfed-v2": splitfl.methods.splitfed_v2()}


class Sleepy(torch.utils.data.Dataset):
    """A data set that takes its time once: at the n-th sample that is asked for, three seconds or until it is woken."""

    def __init__(self, data, *, at, awake):
        self.data, self.at, self.awake, self.asked = data, at, awake, 0

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.asked += 1
        if self.asked == self.at:
            self.awake.wait(3)
        return self.data[index]


def run_with_sleeper(bench, method, policy, *, rounds=2, deadlines=None, keep="reset"):
    """Three clients of which c1 sleeps in round 1 until round 1 has closed."""
    awake = threading.Event()
    deadlines = deadlines or splitfl.Deadlines(enrollment=10, step=20, round=20, rejoin=5)
    made = bench.job(bench.Mlp, "fc1", method, deadlines=deadlines, optimizer_state=keep)
    clients = {f"c{client}": bench.dataset(8, seed=client) for client in range(3)}
    clients["c1"] = Sleepy(clients["c1"], at=3, awake=awake)

    def on_round(record):
        awake.set()

    start = time.monotonic()
    trained, words = bench.run(
        bench.over_grpc(made.blueprint(), clients, rounds=rounds, stragglers=policy, on_round=on_round)
    )
    return trained, words, time.monotonic() - start


@pytest.mark.parametrize(("quorum", "asked", "needed"), [
    (1, 8, 1), (3, 8, 3), (0.5, 8, 4), (0.5, 7, 4), (0.99, 8, 8), ("all", 8, 8),
])  # fmt: skip
def test_how_many_make_a_round(quorum, asked, needed):
    assert Stragglers(quorum=quorum).needed(asked) == needed


@pytest.mark.parametrize("keep", ["reset", "keep"])
@pytest.mark.parametrize("method", SEPARATE)
def test_a_round_closes_after_the_grace_of_a_late_client_which_is_asked_again(bench, method, keep):
    policy = Stragglers(quorum=2, grace=0.3, late="skip")
    trained, words, seconds = run_with_sleeper(bench, SEPARATE[method], policy, keep=keep)
    first, second = trained.rounds
    assert first.participants == ("c0", "c2")
    assert [failure.client for failure in first.failures] == ["c1"]
    assert "not done 0.3 s after 2 of 3 clients were: the round closed" in first.failures[0].reason
    assert second.participants == ("c0", "c1", "c2")
    assert second.failures == ()
    assert set(words.values()) == {"training is complete after 2 rounds"}
    assert seconds < 15


@pytest.mark.parametrize("method", [*SEPARATE.values(), *TOGETHER.values()], ids=[*SEPARATE, *TOGETHER])
def test_a_client_that_sleeps_past_the_deadline_is_left_out_and_asked_again(bench, method):
    deadlines = splitfl.Deadlines(enrollment=10, step=1.0, round=20, rejoin=5)
    trained, words, _ = run_with_sleeper(bench, method, Stragglers(late="skip"), deadlines=deadlines)
    assert trained.rounds[0].participants == ("c0", "c2")
    assert "waited 1 s for" in trained.rounds[0].failures[0].reason
    assert trained.rounds[1].participants == ("c0", "c1", "c2")
    assert words["c1"] == "training is complete after 2 rounds"


def test_by_default_a_late_client_leaves(bench):
    deadlines = splitfl.Deadlines(enrollment=10, step=1.0, round=20, rejoin=5)
    trained, words, _ = run_with_sleeper(bench, SEPARATE["pipar"], Stragglers(), deadlines=deadlines)
    assert [record.participants for record in trained.rounds] == [("c0", "c2"), ("c0", "c2")]
    assert "the server dropped c1: waited 1 s for" in str(words["c1"])


@pytest.mark.parametrize("quorum", ["all", 3, 0.9])
def test_too_few_end_the_training_and_say_who_was_missing(bench, quorum):
    deadlines = splitfl.Deadlines(enrollment=10, step=1.0, round=20, rejoin=5)
    with pytest.raises(SplitflError, match=r"round 1: 2 of 3 clients delivered, the quorum is 3 \(c1: waited 1 s"):
        run_with_sleeper(bench, SEPARATE["pipar"], Stragglers(quorum=quorum, late="skip"), deadlines=deadlines)


@pytest.mark.parametrize("keep", ["reset", "keep"])
@pytest.mark.parametrize("method", [*SEPARATE.values(), *TOGETHER.values()], ids=[*SEPARATE, *TOGETHER])
def test_stale_work_leaves_no_trace(bench, method, keep):
    """A late client's round counts for nothing anywhere: the weights are those of a run in which it was not asked."""
    deadlines = splitfl.Deadlines(enrollment=10, step=1.0, round=20, rejoin=5)
    policy = Stragglers(late="skip")
    late, _, _ = run_with_sleeper(bench, method, policy, rounds=1, deadlines=deadlines, keep=keep)
    made = bench.job(bench.Mlp, "fc1", method, deadlines=deadlines, optimizer_state=keep)
    clients = {f"c{client}": bench.dataset(8, seed=client) for client in range(3)}

    async def absent(name, data, plain, open_channel):
        broken = Broken(data)
        return await plain(name, broken)

    without, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=1, ends={"c1": absent}))
    assert without.rounds[0].participants == ("c0", "c2")
    assert all(torch.equal(late.state[name], without.state[name]) for name in late.state)


class Broken(torch.utils.data.Dataset):
    """A data set that fails at once."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        raise OSError("the disk is gone")

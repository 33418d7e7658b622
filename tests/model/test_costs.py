"""The numbers that planning starts from, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from splitfl.model import partition, possible_cuts, profile


def vgg():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


CONV_FLOPS, LINEAR_FLOPS = 2 * 8 * 8 * 4 * 3 * 9, 2 * 64 * 10
CONV, NORM, LINEAR = 4 * 3 * 9 + 4, 8, 64 * 10 + 10
X = torch.zeros(1, 3, 8, 8)


def test_possible_cuts_of_a_chain():
    cuts = possible_cuts(vgg(), X)
    assert [cut.place for cut in cuts] == ["0", "1", "2", "3", "4"]
    assert [cut.parameters for cut in cuts] == [(CONV, NORM + LINEAR)] + [(CONV + NORM, LINEAR)] * 4
    assert [cut.bytes for cut in cuts] == [4 * 4 * 64] * 3 + [4 * 64] * 2
    assert {cut.flops for cut in cuts} == {(CONV_FLOPS, LINEAR_FLOPS)}
    assert {cut.tensors for cut in cuts} == {1}
    assert "max_pool2d_with_indices" in cuts[0].uncounted


def test_every_possible_cut_can_be_made_and_carries_what_it_says(bench):
    for name, case in bench.zoo.items():
        example = case.batch(2)[0]
        for cut in possible_cuts(case.model(), example):
            for place in (cut.place, *cut.aliases):
                ports = partition(case.model(), example, [place]).stages[0].outputs
                assert len(ports) == cut.tensors, (name, place)
                assert sum(port.bytes for port in ports if port.batched) == cut.bytes, (name, place)


def test_places_that_coincide_are_one_entry(bench):
    cuts = {cut.place: cut for cut in possible_cuts(bench.zoo["cnn"].model(), bench.zoo["cnn"].batch(1)[0])}
    assert cuts["features"].aliases[0] == "features.4"


def test_recurrent_and_attention_layers_are_counted():
    lstm = possible_cuts(nn.Sequential(nn.LSTM(3, 4, batch_first=True), Last()), torch.zeros(1, 5, 3))
    assert lstm[0].flops[0] == 2 * 5 * (16 * 3 + 16 * 4)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    block = possible_cuts(nn.Sequential(layer, nn.Flatten()), torch.zeros(1, 5, 8))
    assert block[0].flops[0] == 2 * 5 * (8 * 24 + 8 * 8 + 2 * 8 * 16) + 2 * 2 * 5 * 5 * 8


class Last(nn.Module):
    def forward(self, given):
        return torch.tanh(given[0][:, -1])


def test_profile_of_the_stages():
    front, tail = profile(partition(vgg(), X, ["3"]))
    assert (front.flops_forward, tail.flops_forward) == (CONV_FLOPS, LINEAR_FLOPS)
    assert front.flops_backward_input == front.flops_backward_weight == CONV_FLOPS
    assert front.parameter_bytes == 4 * (CONV + NORM)
    assert front.state_bytes == 4 * (CONV + NORM + 8) + 8  # running mean and variance, and the counter
    assert (front.activation_bytes, front.gradient_bytes, tail.activation_bytes) == (256, 256, 0)
    inputs, full, pooled = 4 * 3 * 64, 4 * 4 * 64, 4 * 4 * 16
    indices = 2 * pooled
    assert front.stash_bytes == pytest.approx(inputs + 2 * full + indices, rel=0.05)
    assert tail.stash_bytes == pytest.approx(pooled)
    assert all(isinstance(value, (float, int, tuple)) for value in dataclasses.asdict(front).values())


def test_profile_of_a_frozen_and_of_an_uncut_model():
    model = vgg()
    model[0].requires_grad_(False)
    front, _ = profile(partition(model, X, ["0"]))
    assert (front.flops_backward_weight, front.trainable_bytes, front.gradient_bytes) == (0, 0, 0)
    (whole,) = profile(partition(vgg(), X, []))
    assert whole.flops_forward == CONV_FLOPS + LINEAR_FLOPS
    assert whole.activation_bytes == 0

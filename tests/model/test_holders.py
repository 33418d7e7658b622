"""What of a model each holder of features computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from splitfl.model import CutError, holders, partition


class Wide(nn.Module):
    """A convolution and attention beside a table; functional code in between, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.embed, self.attention = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.table, self.drop = nn.Linear(5, 6), nn.Dropout(0.5)
        self.head = nn.Linear(8 + 4 + 6, 2)

    def forward(self, image, series, table):
        first = self.image(image).flatten(1)
        second = self.embed(series)
        second = second + self.attention(second, second, second, need_weights=False)[0]
        third = self.drop(torch.tanh(self.table(table)))
        return self.head(torch.cat([first, second.mean(dim=1), third], dim=1))


EXAMPLE = {"image": torch.randn(2, 1, 4, 4), "series": torch.randn(2, 7, 3), "table": torch.randn(2, 5)}


@pytest.mark.parametrize("how", ["fx", "export"])
def test_the_parts_compute_what_the_stage_computes(how):
    model = Wide()
    stage = partition(model, EXAMPLE, ["drop"], method=how).stages[0]
    parts = holders(stage)
    assert [part.inputs[0].name for part in parts] == list(EXAMPLE)
    assert sorted(name for part in parts for name in part.state_names) == sorted(stage.state_names)
    assert sorted(port.name for part in parts for port in part.outputs) == sorted(port.name for port in stage.outputs)
    torch.manual_seed(0)
    whole = stage.apply(stage.module, EXAMPLE)
    together = {}
    for part in parts:
        name = part.inputs[0].name
        torch.manual_seed(0)
        together |= part.apply(part.module, {name: EXAMPLE[name]})
    assert together.keys() == whole.keys()
    assert all(torch.equal(together[name], whole[name]) for name in whole)
    states = {name: value for part in parts for name, value in part.state.items()}
    assert all(torch.equal(value, states[name]) for name, value in stage.state.items())
    assert int(states["image.1.num_batches_tracked"]) == 1


def test_nothing_of_another_holder_is_in_a_part():
    image, series, table = holders(partition(Wide(), EXAMPLE, ["drop"]).stages[0])
    assert all(name.startswith("image.") for name in image.state_names)
    assert {name.split(".")[0] for name in series.state_names} == {"embed", "attention"}
    assert table.state_names == ("table.weight", "table.bias")
    assert not [name for name, _ in table.module.named_modules() if "image" in name or "embed" in name]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ("cat", "'cat', which crosses the cut, is made of image, series, table, expected one input"),
        ("attention", "input 'table' crosses the cut as it is: choose a cut after its own layers"),
    ],
)
def test_a_cut_that_divides_no_holders_is_refused(cut, message):
    with pytest.raises(CutError, match=message):
        holders(partition(Wide(), EXAMPLE, [cut]).stages[0])


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.head = nn.Linear(3, 4), nn.Linear(8, 2)

    def forward(self, left, right):
        return self.head(torch.cat([self.same(left), torch.relu(self.same(right))], dim=1))


class Ignored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, left, right):
        return self.head(torch.relu(self.own(left)))


def test_holders_share_no_weights_and_none_is_idle():
    two = (torch.randn(2, 3), torch.randn(2, 3))
    with pytest.raises(CutError, match=r"'same.weight' is used for input 'left' and again for 'right'"):
        holders(partition(Shared(), two, ["relu"]).stages[0])
    with pytest.raises(CutError, match="nothing of input 'right' crosses the cut"):
        holders(partition(Ignored(), two, ["relu"]).stages[0])
    with pytest.raises(CutError, match="the model is not cut"):
        holders(partition(Shared(), two, []).stages[0])

"""The data that ships inside packages."""

import sys
from pydoc_data.topics import topics

import pytest
import torch

from splitfl.data import NAMES, DataError, load
from splitfl.data.builtin import CHARACTERS
from splitfl.data.labels import class_labels


@pytest.mark.parametrize(
    ("name", "samples", "shape", "classes"),
    [("digits", 1797, (1, 8, 8), 10), ("breast-cancer", 569, (30,), 2), ("wine", 178, (13,), 3)],
)
def test_the_sets_are_whole_and_divided_alike_by_class(name, samples, shape, classes):
    data = load(name)
    assert len(data.train) + len(data.test) == samples
    assert data.classes == classes
    assert data.example_input.shape == (1, *shape)
    inputs, target = data.train[0]
    assert (inputs.shape, inputs.dtype, target.dtype) == (torch.Size(shape), torch.float32, torch.int64)
    for label in range(classes):
        train, test = ((class_labels(part) == label).sum() for part in (data.train, data.test))
        assert abs(test / (train + test) - 0.2) < 0.02


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_the_same_every_time(name):
    torch.manual_seed(1)
    first = load(name)
    torch.manual_seed(2)
    again = load(name)
    for one, other in ((first.train, again.train), (first.test, again.test)):
        assert all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))


def test_digits_lie_between_0_and_1_and_grow_on_demand():
    images = load("digits").train.tensors[0]
    assert images.min() == 0
    assert images.max() == 1
    grown = load("digits", upsample=32)
    assert grown.example_input.shape == (1, 1, 32, 32)
    assert torch.equal(grown.train.tensors[1], load("digits").train.tensors[1])


@pytest.mark.parametrize("name", ["breast-cancer", "wine"])
def test_measurements_are_standardized_by_the_training_samples(name):
    inputs = load(name).train.tensors[0]
    torch.testing.assert_close(inputs.mean(dim=0), torch.zeros(inputs.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(dim=0), torch.ones(inputs.shape[1]), atol=1e-5, rtol=0)


def test_text_is_english_and_its_targets_are_the_next_characters():
    data = load("text", length=32)
    inputs, target = data.train[5]
    assert inputs.shape == target.shape == (32,)
    assert torch.equal(inputs[1:], target[:-1])
    spelled = "".join(CHARACTERS[number - 1] for number in torch.cat([data.train[i][0] for i in range(20)]))
    assert spelled in "\n".join(topics[key] for key in sorted(topics))
    assert int(data.train.tensors[0].max()) < data.classes
    assert (data.train.tensors[0] == 0).float().mean() < 0.01
    assert data.example_input.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, "data set = 'mnist': expected one of digits, breast-cancer, wine, text"),
        ("digits", {"size": 32}, "data set 'digits': unknown option 'size', expected some of upsample"),
        ("wine", {"upsample": 32}, "data set 'wine': unknown option 'upsample', it takes none"),
        ("digits", {"upsample": 0}, "data set 'digits': upsample = 0"),
        ("text", {"length": 0}, "data set 'text': length = 0, expected 1 to"),
    ],
)
def test_what_does_not_exist_is_named(name, options, message):
    with pytest.raises(DataError) as raised:
        load(name, **options)
    assert message in str(raised.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'splitfl\[data\]'"):
        load("digits")

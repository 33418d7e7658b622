"""Small data sets with known labels."""

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset


class Pairs(Dataset):
    """A map-style data set that keeps its labels to itself."""

    def __init__(self, labels):
        self._labels = labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return torch.tensor([float(index)]), self._labels[index]


@pytest.fixture
def pairs():
    return Pairs


@pytest.fixture
def tabular():
    """`tabular(labels)`: a TensorDataset whose single feature is the sample's index."""

    def make(labels):
        target = torch.as_tensor(labels)
        return TensorDataset(torch.arange(len(target), dtype=torch.float32).unsqueeze(1), target)

    return make

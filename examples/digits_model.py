"""A small convolutional network for 8x8 digits."""

import torch
from torch import nn


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers, 1x8x8 in and 10 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 4 * 4, 64)
        self.classes = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool1(torch.relu(self.conv1(images)))
        features = torch.relu(self.conv2(features)).flatten(1)
        return self.classes(torch.relu(self.hidden(features)))


def build_model() -> nn.Module:
    return DigitsNet()

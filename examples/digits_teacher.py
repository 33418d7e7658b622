"""A teacher for `digits_model.py`: deeper blocks, the same shapes at the cuts "pool1" and "hidden".

It learns from all the data. In earnest a teacher comes with its weights; this one is small enough to be trained
whenever it is asked for.
"""

import torch
from torch import nn

import splitfl


class DigitsTeacher(nn.Module):
    """Three convolutions and three linear layers, 1x8x8 in and 10 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.wide = nn.Linear(64 * 4 * 4, 128)
        self.hidden = nn.Linear(128, 64)
        self.classes = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool1(torch.relu(self.conv1(images)))
        features = torch.relu(self.conv3(torch.relu(self.conv2(features)))).flatten(1)
        return self.classes(torch.relu(self.hidden(torch.relu(self.wide(features)))))


def build_teacher(epochs: int = 18) -> nn.Module:
    """The teacher, trained. Smoothed labels and weight decay keep what it gives small: large distances diverge."""
    torch.manual_seed(0)
    model = DigitsTeacher()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    data = torch.utils.data.DataLoader(splitfl.load("digits").train, batch_size=64, shuffle=True)
    for _ in range(epochs):
        for images, labels in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            optimizer.step()
    return model

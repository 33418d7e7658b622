import torch
from torch import nn

import splitfl

data = splitfl.load("digits")


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


job = splitfl.Job(
    model=build_model,
    example_input=torch.zeros(1, 1, 8, 8),
    cut="2",  # after the pooling layer; "auto" lets the simulator choose
    method=splitfl.methods.pipar(micro_batches=4),
    loss=nn.functional.cross_entropy,
    optimizer=splitfl.sgd(lr=0.2, momentum=0.9),
    batch_size=64,
    local_epochs=2,
)
result = splitfl.simulate(
    job,
    clients=splitfl.dirichlet(data.train, 4, alpha=1.0),
    test=data.test,
    rounds=8,
    devices="raspberry-pi-4",
    link="wifi-50",
)
print(f"accuracy {result.accuracy:.3f}")
result.report("report.html")

"""One job on different devices and links: where the model is cut, how long a round takes, what the codecs save.

The cut and the number of micro-batches are "auto", so the simulator chooses them for each device and link. Seconds
are virtual: the same on every machine.
"""

import flwr.serverapp.strategy
import torch
from torch import nn

import splitfl

FLEETS = [("raspberry-pi-3", "wifi-10"), ("raspberry-pi-4", "wifi-50"), ("phone-mid", "4g")]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(device, link, codec, *, rounds):
    data = splitfl.load("digits")
    job = splitfl.Job(
        model=build_model,
        example_input=torch.zeros(1, 1, 8, 8),
        cut="auto",
        method=splitfl.methods.pipar(micro_batches="auto"),
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.1, momentum=0.9),
        strategy=flwr.serverapp.strategy.FedAvg(),
        codec=codec,
        batch_size=32,
        local_epochs=2,
    )
    return splitfl.simulate(
        job,
        clients=splitfl.dirichlet(data.train, 4, alpha=0.5),
        test=data.test,
        devices=device,
        link=link,
        rounds=rounds,
        title=f"{device}, {link}, {codec.activation.name if codec.activation else 'every bit'}",
    )


def main(rounds=4):
    small = splitfl.codec(activation="int8", gradient="bf16")
    results = [train(*fleet, codec, rounds=rounds) for fleet in FLEETS for codec in (splitfl.codec(), small)]
    for result in results:
        last, chosen = result.history.rounds[-1], result.history.settings
        print(
            f"{result.history.title:<36} cut {chosen['cut']:<5} micro-batches {chosen['micro-batches']:<2}  "
            f"{last.seconds:6.2f} s a round  {last.bytes_up / 1e6:5.2f} MB up  accuracy {result.accuracy:.3f}"
        )
    results[0].report("report.html", beside=results[1:])


if __name__ == "__main__":
    main()

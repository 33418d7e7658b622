"""What many clients that do nothing cost the few that train: 4 train over TLS, with and without 256 others enrolled.

The strategy asks the same four every round. The others are enrolled over real TLS connections from another process and
wait; a quarter of them is slow besides: it also watches the training's status and never reads what it is told. Runs
with and without the others alternate; the medians of their rounds are compared. The aim is to lose less than 15 %.

    python benchmarks/idle_clients.py [--idle 256] [--rounds 30] [--pairs 3]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.api.loop import run_blocking
from splitfl.errors import SplitflError
from splitfl.run.client import Client
from splitfl.run.pool import Threads
from splitfl.transport import Channel, connect
from splitfl.transport.messages import OBSERVER, PROTOCOL, Hello

TRAINING = 4
WARM_UP = 5


class OnlyTheFirst:
    """A Flower Grid that shows a strategy only the clients with the smallest ids."""

    def __init__(self, grid: Any, count: int) -> None:
        self._grid = grid
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        return sorted(self._grid.get_node_ids())[: self._count]


class SameFour(FedAvg):
    """FedAvg that asks the same four clients every round."""

    def configure_train(self, server_round, arrays, config, grid):
        return super().configure_train(server_round, arrays, config, OnlyTheFirst(grid, TRAINING))


def job(clients: int) -> splitfl.Job:
    del clients
    return splitfl.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        example_input=torch.zeros(1, 64),
        cut="1",
        method=splitfl.methods.pipar(micro_batches=2),
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.1),
        strategy=SameFour(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        batch_size=32,
    )


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(128, 64, generator=generator), torch.randint(0, 10, (128,), generator=generator))


def run_clients(address: str, ca: Path, names: list[str], slow: int) -> None:
    """All of one kind in one process: each with its own connection, its own data, its own turn."""
    torch.set_num_threads(1)
    tls, blueprint, pool = splitfl.ClientTLS(ca=ca), job(0).blueprint(), Threads(1)

    async def open_channel() -> Channel:
        return await connect(address, tls=tls, timeout=60)

    async def take_part(name: str) -> None:
        await Client(blueprint, data(), name=name, connect=open_channel, pool=pool).run()

    async def watch_without_reading() -> None:
        channel = await open_channel()
        await channel.tell(Hello(PROTOCOL, "observer", "", 0, "benchmark", role=OBSERVER))
        await channel.wait_closed()

    async def all_of_them() -> None:
        work = [take_part(name) for name in names] + [watch_without_reading() for _ in range(slow)]
        await asyncio.gather(*work, return_exceptions=True)

    run_blocking(all_of_them())
    pool.close()


def seconds_of_rounds(idle: int, rounds: int, folder: Path) -> list[float]:
    """Seconds of each round, warm-up left out, with `idle` clients that are not asked."""
    identity = splitfl.transport.make_certificates(folder, ["127.0.0.1"])
    names = [f"c{number}" for number in range(TRAINING + idle)]
    processes: list[Any] = []
    seconds: list[float] = []

    def start_clients(address: str) -> None:
        for part, slow in ((names[:TRAINING], 0), (names[TRAINING:], idle // 4)):
            arguments = (address, folder / "ca.pem", part, slow)
            processes.append(multiprocessing.get_context("spawn").Process(target=run_clients, args=arguments))
            processes[-1].start()

    try:
        splitfl.serve(
            job(len(names)),
            clients=len(names),
            rounds=rounds + WARM_UP,
            tls=identity,
            on_listen=start_clients,
            on_round=lambda record: seconds.append(record.seconds),
        )
    finally:
        for process in processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
    return seconds[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    alone: list[float] = []
    among: list[float] = []
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.pairs):
            pair = [seconds_of_rounds(idle, options.rounds, Path(name)) for idle in (0, options.idle)]
            alone += pair[0]
            among += pair[1]
            ratios.append(statistics.median(pair[1]) / statistics.median(pair[0]))
    one, other = statistics.median(alone) * 1e3, statistics.median(among) * 1e3
    print(f"{TRAINING} clients train, nobody else is there     {one:8.2f} ms a round (median of {len(alone)})")
    print(f"{TRAINING} clients train, {options.idle} others are enrolled  {other:8.2f} ms a round")
    print(f"ratio  {other / one:.3f}  (by pair: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; aim: below 1.15)")


if __name__ == "__main__":
    try:
        main()
    except SplitflError as error:
        raise SystemExit(f"idle_clients: {error}") from None

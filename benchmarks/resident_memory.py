"""Whether a server's memory grows with the rounds: resident bytes of the server process over 200 rounds.

Two clients in a process of their own train a small job over TLS. The slope is the least-squares line through the
resident memory after each round, the first quarter left out; the aim is less than 0.1 MB a round.

    python benchmarks/resident_memory.py [--rounds 200]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from idle_clients import data, job, run_clients

import splitfl

CLIENTS = ["c0", "c1"]


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def slope(values: list[int]) -> float:
    """Bytes a round: the least-squares line through `values`."""
    return statistics.linear_regression(range(len(values)), values).slope


def measure(rounds: int, folder: Path) -> list[int]:
    """Resident bytes of this process, which is the server's, after each round."""
    torch.set_num_threads(1)
    identity = splitfl.transport.make_certificates(folder, ["127.0.0.1"])
    processes: list[Any] = []
    sizes: list[int] = []

    def start(address: str) -> None:
        arguments = (address, folder / "ca.pem", CLIENTS, 0)
        processes.append(multiprocessing.get_context("spawn").Process(target=run_clients, args=arguments))
        processes[0].start()

    try:
        splitfl.serve(
            job(len(CLIENTS)),
            clients=len(CLIENTS),
            rounds=rounds,
            tls=identity,
            test=data(),
            checkpoint=folder / "checkpoints",
            on_listen=start,
            on_round=lambda _: sizes.append(resident()),
        )
    finally:
        for process in processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        sizes = measure(rounds, Path(name))
    settled = sizes[rounds // 4 :]
    print(
        f"resident memory of the server: {sizes[0] / 1e6:.1f} MB after round 1, {sizes[-1] / 1e6:.1f} MB after {rounds}"
    )
    print(f"slope over the last {len(settled)} rounds: {slope(settled) / 1e6:+.4f} MB a round (aim: below 0.1)")


if __name__ == "__main__":
    main()

"""What a round costs beside its training: 1 MiB of weights to a client and back, through Grid and session.

Measured in one run, over loopback between two processes, interleaved: whole rounds of this library (Flower's FedAvg
through our Grid, guards, enrollment kept open, TLS off), and a bare gRPC stream that echoes 1 MiB. Prints the medians
and their ratio; the aim is 5 or less.

    python benchmarks/round_overhead.py [--rounds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.api.loop import run_blocking

MEBIBYTE = 1 << 20
METHOD = "/benchmark.Echo/Stream"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class OneMebibyte(nn.Module):
    """262,144 weights, of which a forward uses one: training costs next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(MEBIBYTE // 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight[:1]


def job() -> splitfl.Job:
    return splitfl.Job(
        model=OneMebibyte,
        example_input=torch.zeros(1, 1),
        method="fedavg",
        loss=nn.functional.mse_loss,
        optimizer=splitfl.sgd(lr=0.1),
        batch_size=1,
    )


def run_client(address: str) -> None:
    torch.set_num_threads(1)
    splitfl.join(job(), TensorDataset(torch.ones(1, 1), torch.ones(1, 1)), server=address, name="c0")


def rounds_of_ours(rounds: int) -> list[float]:
    """Seconds of each round, warm-up left out."""
    seconds: list[float] = []
    clients: list[multiprocessing.Process] = []

    def start_client(address: str) -> None:
        clients.append(multiprocessing.get_context("spawn").Process(target=run_client, args=(address,)))
        clients[0].start()

    splitfl.serve(
        job(),
        clients=1,
        rounds=rounds + 5,
        on_listen=start_client,
        on_round=lambda record: seconds.append(record.seconds),
    )
    clients[0].join(timeout=30)
    return seconds[5:]


def run_echo(pipe: Connection) -> None:
    async def serve() -> None:
        async def echo(requests, _):
            async for request in requests:
                yield request

        server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", {"Stream": handler}),))
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await server.stop(None)

    asyncio.run(serve())


def echoes_of_grpc(rounds: int) -> list[float]:
    """Seconds of each round trip on a bare stream, warm-up left out."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_echo, args=(theirs,))
    process.start()
    port = ours.recv()

    async def measure() -> list[float]:
        payload, seconds = bytes(MEBIBYTE), []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            stream = channel.stream_stream(METHOD)()
            for _ in range(rounds + 5):
                start = time.perf_counter()
                await stream.write(payload)
                await stream.read()
                seconds.append(time.perf_counter() - start)
            await stream.done_writing()
        return seconds[5:]

    try:
        return run_blocking(measure())  # gRPC stays with the first event loop that it meets
    finally:
        ours.send("end")
        process.join(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(3):
        bare += echoes_of_grpc(rounds // 3)
        ours += rounds_of_ours(rounds // 3)
    one, other = statistics.median(ours) * 1e3, statistics.median(bare) * 1e3
    print(f"round through Grid and session, 1 MiB there and back   {one:7.2f} ms (median of {len(ours)})")
    print(f"bare gRPC stream, 1 MiB there and back                 {other:7.2f} ms (median of {len(bare)})")
    print(f"ratio                                                  {one / other:7.2f}   (aim: 5 or less)")


if __name__ == "__main__":
    main()

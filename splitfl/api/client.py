"""The client's end of a run over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from splitfl.api.job import Job
from splitfl.api.loop import run_blocking
from splitfl.run.client import Client
from splitfl.run.pool import Threads
from splitfl.run.virtual import Fleet
from splitfl.transport import Channel, ClientTLS, Link, connect
from splitfl.transport.address import require_secrecy


def join(
    job: Job,
    dataset: Dataset[Any],
    *,
    server: str,
    name: str,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    token: str = "",
    state: Path | None = None,
    link_key: bytes = b"",
    patience: float = 60.0,
    link: Link | None = None,
    fleet: Fleet | None = None,
    on_connect: Callable[[], None] = lambda: None,
) -> str:
    """Take part in the training at `server` ("host:port") as client `name`, with this data; returns its last word.

    token     this client's secret, where the server asks for one
    state     folder for what must survive this process: a front of its own, optimizers that go on
    link_key  the secret that holders of features of the same samples share, in vertical methods; the server must not
              have it
    patience  seconds to wait for the server to be reachable, at first and after a lost connection
    link      an emulated link between this client and the server
    on_connect  called for every connection that is made, the first and those after a loss

    Raises SplitflError where the server cannot be reached or trusted, refuses this client, or is lost.
    """
    require_secrecy(server, secret=bool(token), protected=tls is not None)
    blueprint = job.blueprint(fleet)
    pool = Threads(1)

    async def reach() -> Channel:
        silence = job.deadlines.silence
        channel = await connect(server, tls=tls, insecure=insecure, timeout=patience, link=link, silence=silence)
        on_connect()
        return channel

    async def run() -> str:
        return await Client(
            blueprint,
            dataset,
            name=name,
            connect=reach,
            pool=pool,
            patience=patience,
            token=token,
            state=state,
            link_key=link_key,
        ).run()

    try:
        return run_blocking(run())
    finally:
        pool.close()

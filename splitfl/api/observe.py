"""Looking on: how the training at a server stands, for one that takes no part in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from splitfl.api.loop import run_blocking
from splitfl.errors import SplitflError
from splitfl.transport import ChannelClosed, ClientTLS, connect
from splitfl.transport.address import require_secrecy
from splitfl.transport.messages import OBSERVER, PROTOCOL, Finish, Hello, Refuse, Status
from splitfl.version import __version__

Standing = dict[str, Any]

SILENCE = 24 * 3600.0
"""Seconds that an observer waits for the end of a round."""


def observe(
    server: str,
    *,
    name: str = "observer",
    tls: ClientTLS | None = None,
    insecure: bool = False,
    token: str = "",
    timeout: float = 10.0,
    follow: Callable[[Standing], None] | None = None,
) -> Standing:
    """How the training at `server` ("host:port") stands; docs/monitoring.md lists the fields.

    timeout  seconds to reach the server and hear its first answer
    follow   called with the first standing and with each later one, until training ends; the last one is returned

    Raises SplitflError where the server cannot be reached, or does not let this observer in.
    """
    require_secrecy(server, secret=bool(token), protected=tls is not None)

    async def run() -> Standing:
        channel = await connect(server, tls=tls, insecure=insecure, timeout=timeout)
        try:
            await channel.tell(Hello(PROTOCOL, name, "", 0, f"splitfl {__version__}", token, role=OBSERVER))
            standing = _read(await channel.hear(timeout=timeout, what="how training stands"))
            while follow is not None:
                follow(standing)
                try:
                    standing = _read(await channel.hear(timeout=SILENCE, what="the end of a round"))
                except ChannelClosed:
                    break
            return standing
        finally:
            await channel.close("the observer has seen enough")

    return run_blocking(run())


def _read(message: object) -> Standing:
    if isinstance(message, Refuse):
        raise SplitflError(f"the server refused: {message.message}")
    if not isinstance(message, Status):
        said = message.reason if isinstance(message, Finish) else type(message).__name__
        raise SplitflError(f"the server answered an observer with {said!r}, expected how training stands")
    try:
        standing = json.loads(message.content)
    except (ValueError, RecursionError):
        standing = None
    if not isinstance(standing, dict):
        raise SplitflError("the server's answer holds no JSON object, expected how training stands")
    return standing

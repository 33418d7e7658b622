"""Named devices and links, for planning without a profile of the real ones.

Every figure says where it comes from and whether it is an estimate. Training throughput depends on the model; the
figures are for dense fp32 layers. For small computers we take the published HPL result: HPL counts fp64, fp32 is
twice as fast, and training loses about half of that to memory traffic and small matrices, so the two cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from splitfl.planning.cost import Link

MIB = 2**20
GIB = 2**30
MBIT = 1e6 / 8
"""Bytes per second in 1 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of machine.

    flops       sustained fp32 FLOP per second in training
    memory      bytes that a training process can have, the system's own share taken off
    idle, busy  watts
    source      where the figures come from; `estimate` when any of them is not a measurement or a specification
    """

    flops: float
    memory: int
    idle: float
    busy: float
    source: str
    estimate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A kind of link between a client and a server, seen from the client. `source`, `estimate` as in `Device`."""

    up: Link
    down: Link
    source: str
    estimate: bool = True


_HPL = "busy watts and HPL fp64 of github.com/geerlingguy/top500-benchmark, taken as fp32 training; idle watts assumed"

DEVICES: dict[str, Device] = {
    "raspberry-pi-3": Device(
        flops=5e9,
        memory=700 * MIB,
        idle=2.0,
        busy=5.0,
        source="4 Cortex-A53 at 1.2-1.4 GHz: scaled from the Raspberry Pi 4 by clock and vector width",
    ),
    "raspberry-pi-4": Device(flops=11.9e9, memory=3 * GIB, idle=2.7, busy=7.2, source=f"{_HPL} (BCM2711, 1.8 GHz)"),
    "raspberry-pi-5": Device(flops=35.2e9, memory=7 * GIB, idle=3.3, busy=12.7, source=f"{_HPL} (BCM2712, 8 GB)"),
    "jetson-nano": Device(
        flops=80e9,
        memory=3 * GIB,
        idle=2.0,
        busy=10.0,
        source="specification: 128 Maxwell cores at 921 MHz (236 GFLOP/s fp32), 4 GB, 10 W mode; a third sustained",
    ),
    "phone-low": Device(
        flops=8e9, memory=1 * GIB, idle=0.5, busy=2.5, source="CPU only, 8 Cortex-A53 class cores: assumed"
    ),
    "phone-mid": Device(
        flops=25e9, memory=2 * GIB, idle=0.5, busy=4.0, source="CPU only, 2 Cortex-A76 class and 6 small cores: assumed"
    ),
    "phone-high": Device(
        flops=60e9, memory=4 * GIB, idle=0.6, busy=6.0, source="CPU only, Cortex-X class and 7 other cores: assumed"
    ),
    "laptop": Device(
        flops=88e9,
        memory=12 * GIB,
        idle=6.0,
        busy=41.6,
        source=f"{_HPL} (Framework 13, Ryzen AI 340); memory and idle watts assumed",
    ),
    "gpu-server": Device(
        flops=10e12,
        memory=22 * GIB,
        idle=60.0,
        busy=350.0,
        source="a 24 GB workstation GPU of about 30 TFLOP/s fp32, a third sustained: assumed",
    ),
}
"""The known devices."""


def _both_ways(mbit: float, *, latency: float, source: str) -> Connection:
    each = Link(mbit * MBIT, latency)
    return Connection(up=each, down=each, source=source)


_NAMED = "the rate is the name's; latency assumed, one way"
_GOODPUT = "rate of the standard less Ethernet, IP and TCP headers at 1500 bytes (94.9 %); latency assumed"

LINKS: dict[str, Connection] = {
    "wifi-10": _both_ways(10, latency=0.005, source=_NAMED),
    "wifi-50": _both_ways(50, latency=0.005, source=_NAMED),
    "wifi-100": _both_ways(100, latency=0.003, source=_NAMED),
    "4g": Connection(
        up=Link(10 * MBIT, 0.025), down=Link(30 * MBIT, 0.025), source="a typical loaded cell: assumed, not measured"
    ),
    "5g": Connection(
        up=Link(50 * MBIT, 0.010), down=Link(200 * MBIT, 0.010), source="a typical mid-band cell: assumed, not measured"
    ),
    "ethernet-100": _both_ways(94.9, latency=0.0003, source=_GOODPUT),
    "ethernet-1000": _both_ways(949, latency=0.0002, source=_GOODPUT),
    "lan": _both_ways(949, latency=0.0002, source="as ethernet-1000"),
    "lora-like": _both_ways(
        0.005,
        latency=0.5,
        source="5 kbit/s, about LoRa's spreading factor 7 at 125 kHz (5470 bit/s), no duty cycle; latency assumed",
    ),
    "loopback": _both_ways(20_000, latency=2e-05, source="one process to another on one machine: assumed"),
}
"""The known links. A link is as good in both directions unless its source says otherwise."""


def device(name: str) -> Device:
    """The device called `name`. Raises ValueError listing the names, the closest first."""
    if name not in DEVICES:
        raise ValueError(_unknown("device", name, DEVICES))
    return DEVICES[name]


def link(name: str) -> Connection:
    """The link called `name`. Raises ValueError listing the names, the closest first."""
    if name not in LINKS:
        raise ValueError(_unknown("link", name, LINKS))
    return LINKS[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"{what} = {name!r}, expected one of {', '.join(names)}{hint}"

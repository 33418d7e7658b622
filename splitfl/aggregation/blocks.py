"""Blocks of layers: with a cut per device, a layer may be averaged over some clients only.

    layer   conv1  conv2  fc          blocks: conv1        held by c0, c1, c2
    c0        x                               conv2        held by c1, c2
    c1        x      x                        fc           held by c2
    c2        x      x     x

Each block goes through a strategy of its own: moments and distances are taken over clients that can be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Block(NamedTuple):
    """Tensors with the same holders; `holders` is None where every client holds them."""

    names: tuple[str, ...]
    holders: frozenset[int] | None


def blocks_of(names: Iterable[str], holds: Mapping[int, Collection[str]] | None) -> tuple[Block, ...]:
    """`names` grouped by who holds them according to `holds` (client id -> names), in the order of first appearance.

    Without `holds` everybody holds everything: one block, which is empty where nothing is averaged, since the clients
    still have to be asked to train. A name that nobody holds is in no block.
    """
    if holds is None:
        return (Block(tuple(names), None),)
    grouped: dict[frozenset[int], list[str]] = {}
    for name in names:
        holders = frozenset(client for client, held in holds.items() if name in held)
        if holders:
            grouped.setdefault(holders, []).append(name)
    return tuple(Block(tuple(members), holders) for holders, members in grouped.items())

"""How many bytes every actor holds over time, and the most it ever held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from splitfl.schedule import Instruction, Topology, Value, effects, initial_values


class Memory:
    """A ledger of bytes per actor, written in any order of time.

    What an instruction writes is there from its start, what it consumes until its end; a value that is sent stays
    until its last byte has left, and one that arrives is there from then on. A value that is rewritten in place (the
    weights in a step) is not counted twice.
    """

    def __init__(self, topology: Topology, actors: Iterable[str], held: Callable[[Value], int]) -> None:
        self._topology, self._held = topology, held
        self._changes: dict[str, list[tuple[float, int]]] = {actor: [] for actor in actors}
        self._known: dict[Instruction, tuple[int, int]] = {}
        for value, actor in initial_values(topology).items():
            self._changes.setdefault(actor, []).append((0.0, held(value)))

    def carried_out(self, actor: str, instruction: Instruction, start: float, end: float) -> None:
        """Enter what `instruction` writes, at `start`, and what it consumes, at `end`."""
        grown, shrunk = self._known.get(instruction) or self._weigh(instruction)
        changes = self._changes[actor]
        if grown:
            changes.append((start, grown))
        if shrunk:
            changes.append((end, -shrunk))

    def peaks(self) -> dict[str, int]:
        """The most bytes per actor; what is freed at a moment counts before what is taken at it."""
        peaks = {}
        for actor, changes in self._changes.items():
            changes.sort()
            peaks[actor] = max(accumulate((change for _, change in changes), initial=0))
        return peaks

    def _weigh(self, instruction: Instruction) -> tuple[int, int]:
        consumes, _, writes = effects(instruction, self._topology)
        grown = sum(self._held(value) for value in writes if value not in consumes)
        shrunk = sum(self._held(value) for value in consumes if value not in writes)
        self._known[instruction] = grown, shrunk
        return grown, shrunk

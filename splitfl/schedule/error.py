"""The one error of this room: a schedule that cannot be read, lowered or carried out."""

from __future__ import annotations

from splitfl.schedule.instruction import Instruction


class ScheduleError(ValueError):
    """A schedule is wrong; the message names the place.

    `actor`, `position`, `instruction` are that place (positions in a program count from 0), None where the problem
    has no single one.
    """

    def __init__(
        self,
        problem: str,
        *,
        actor: str | None = None,
        position: int | None = None,
        instruction: Instruction | None = None,
    ) -> None:
        place = [
            actor,
            None if position is None else f"position {position}",
            None if instruction is None else str(instruction),
        ]
        where = ", ".join(part for part in place if part is not None)
        super().__init__(f"{where}: {problem}" if where else problem)
        self.actor = actor
        self.position = position
        self.instruction = instruction

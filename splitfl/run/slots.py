"""Where an actor keeps its named values: put once, taken once, gone."""

from __future__ import annotations

from typing import Any

from splitfl.schedule.instruction import Value


class SlotError(RuntimeError):
    """A value was taken before it was put, or put twice: the schedule was not checked."""


class Slots:
    """Named values between the instruction that writes each and the one that consumes it."""

    def __init__(self) -> None:
        self._values: dict[Value, Any] = {}

    def put(self, value: Value, content: Any) -> None:
        """Keep `content` under the name `value`; SlotError if the name is taken."""
        if value in self._values:
            raise SlotError(f"{value} is already here")
        self._values[value] = content

    def take(self, value: Value) -> Any:
        """Give `value` away and forget it; SlotError if it is not here."""
        content = self.peek(value)
        del self._values[value]
        return content

    def peek(self, value: Value) -> Any:
        """Look at `value` and leave it; SlotError if it is not here."""
        if value not in self._values:
            raise SlotError(f"{value} is not here; present: {', '.join(map(str, self._values)) or 'nothing'}")
        return self._values[value]

    def discard(self, client: int | None) -> None:
        """Forget everything of `client`, whose work is abandoned; None is what all clients share."""
        for value in [value for value in self._values if value.client == client]:
            del self._values[value]

    def __len__(self) -> int:
        return len(self._values)

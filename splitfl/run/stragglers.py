"""When a round closes without some of its clients: quorum, grace, and what becomes of those who are late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """A server's policy.

    quorum  clients whose work makes a round: a number, a share (below 1) of those asked, or "all"
    grace   seconds that the others have once the quorum is there; None: until the round's deadline
    late    "drop": a late client leaves the training; "skip": this round goes on without it, the next asks it again
    """

    quorum: int | float | Literal["all"] = 1
    grace: float | None = None
    late: Literal["drop", "skip"] = "drop"

    def needed(self, asked: int) -> int:
        """Clients out of `asked` whose work makes a round."""
        if self.quorum == "all":
            return asked
        return math.ceil(self.quorum * asked) if isinstance(self.quorum, float) else self.quorum

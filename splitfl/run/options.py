"""What a run of rounds may bring along, beside its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from splitfl.errors import SplitflError
from splitfl.run.metrics import Tally
from splitfl.run.record import RoundRecord
from splitfl.run.stragglers import Stragglers
from splitfl.run.virtual import Predict

Evaluate = Callable[[dict[str, torch.Tensor]], dict[str, float]]


class StoppedError(SplitflError):
    """The run ended before its last round because it was asked to; a checkpoint of it can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run of rounds may bring along.

    strategy    a message-based Flower strategy, or None where nothing is averaged
    evaluate    whole model's state -> metrics, after every round
    predict     costs a turn on the virtual clock; without it the record's seconds are real
    alone       costs, on that clock, what the server trained on its own in a round, if it did
    virtual     the record takes its seconds and idle shares from `predict`
    on_round    called with every record
    checkpoint  folder for one file per round
    resume      go on from the newest checkpoint in that folder, if there is one
    stop        asked after every round: whether to end here, to be resumed later
    stragglers  when a round closes without some of its clients, and what becomes of those
    """

    strategy: Any = None
    evaluate: Evaluate | None = None
    predict: Predict | None = None
    alone: Callable[[Tally | None], float] = lambda _: 0.0
    virtual: bool = False
    on_round: Callable[[RoundRecord], None] = lambda _: None
    checkpoint: Path | None = None
    resume: bool = False
    stop: Callable[[], bool] = lambda: False
    stragglers: Stragglers = field(default_factory=Stragglers)

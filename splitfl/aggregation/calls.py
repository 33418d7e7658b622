"""Calling a Flower strategy: what it asks for in a round, what it makes of the replies, and its errors in our words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from splitfl.aggregation.failures import failures_of
from splitfl.aggregation.flower import ConfigRecord, Message, SplitGrid, Strategy, to_record, to_tensors
from splitfl.aggregation.values import AggregationError, Tensors


def configure(
    strategy: Strategy, server_round: int, state: Mapping[str, torch.Tensor], grid: SplitGrid, config: Mapping[str, Any]
) -> list[Message]:
    """The training messages of one round. AggregationError, naming the strategy, for whatever it raises."""
    arrays = to_record(state)
    grid.start_patience()
    with failures_of(strategy, server_round):
        return list(strategy.configure_train(server_round, arrays, ConfigRecord(dict(config)), grid))


def aggregate(
    strategy: Strategy, server_round: int, replies: Sequence[Message], template: Mapping[str, torch.Tensor]
) -> tuple[Tensors, dict[str, float]]:
    """What `strategy` makes of the replies of one round: tensors (not yet checked) and the metrics that are numbers.

    The replies are used up: some strategies empty them. AggregationError for whatever the strategy raises, and where
    it makes nothing.
    """
    with failures_of(strategy, server_round) as warnings:
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        if arrays is None:
            reason = f" ({'; '.join(warnings)})" if warnings else ""
            raise AggregationError(f"it made no weights from {len(replies)} updates{reason}")
        numbers = {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)}
        return to_tensors(arrays, template), numbers

"""Errors and warnings of a strategy, told in the words of a round."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from splitfl.aggregation.values import AggregationError


@contextmanager
def failures_of(strategy: object, server_round: int) -> Iterator[list[str]]:
    """Quiet Flower's account of every step, keep its warnings, and name round and strategy in every error."""
    logger, heard = logging.getLogger("flwr"), _Heard()
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(heard)
    try:
        yield heard.messages
    except Exception as error:
        raise AggregationError(f"round {server_round}: strategy {type(strategy).__name__}: {error}") from error
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)


class _Heard(logging.Handler):
    """Keeps the text of what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(" ".join(record.getMessage().split()))

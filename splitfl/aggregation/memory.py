"""What a strategy remembers from one round to the next: moments, a momentum vector, an adapted clipping norm.

Strategies keep it in plain attributes. It is taken back when a round fails, and written to checkpoints, so that a
resumed job goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from splitfl.aggregation.flower import ArrayRecord, Strategy, to_record
from splitfl.aggregation.values import AggregationError, Tensors

Snapshot = list[tuple[Any, dict[str, Any]]]
Record = dict[str, Any]


def wrapped(strategy: Strategy) -> Iterator[Strategy]:
    """`strategy`, the strategy that it wraps, and so on inwards."""
    inner: Strategy | None = strategy
    while inner is not None:
        yield inner
        inner = getattr(inner, "strategy", None)


def snapshot(strategy: Strategy) -> Snapshot:
    """What `strategy` remembers now. Containers are copied; arrays are not, as strategies replace them."""
    return [
        (
            part,
            {
                name: value.copy() if isinstance(value, dict | list | ArrayRecord) else value
                for name, value in vars(part).items()
            },
        )
        for part in wrapped(strategy)
    ]


def roll_back(taken: Snapshot) -> None:
    """Make the strategy forget what came after the snapshot."""
    for part, values in taken:
        part.__dict__.clear()
        part.__dict__.update(values)


def to_checkpoint(strategy: Strategy, *, since: Snapshot) -> tuple[Tensors, Record]:
    """What `strategy` learned since it was made, as tensors and a record that JSON can hold.

    Settings are not part of it: a number counts only if it is no longer what it was in `since`.
    """
    tensors: Tensors = {}
    record: Record = {"strategy": [type(part).__name__ for part in wrapped(strategy)], "parts": []}
    for depth, (part, (_, before)) in enumerate(zip(wrapped(strategy), since, strict=True)):
        layout, numbers = {}, {}
        for name, value in vars(part).items():
            named = _arrays(value)
            if named:
                kind, arrays = named
                layout[name] = {"kind": kind, "keys": list(arrays)}
                tensors |= {f"{depth}/{name}/{key}": torch.from_numpy(array.copy()) for key, array in arrays.items()}
            elif isinstance(value, int | float) and value != before.get(name):
                numbers[name] = value
        saved: Record = {"arrays": layout, "numbers": numbers}
        if getattr(part, "accountant", None) is not None:
            saved["accountant"] = part.accountant.state_dict()  # type: ignore[attr-defined]
        record["parts"].append(saved)
    return tensors, record


def from_checkpoint(strategy: Strategy, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
    """Give `strategy` what `to_checkpoint` wrote. AggregationError where it was written by another strategy."""
    names = [type(part).__name__ for part in wrapped(strategy)]
    if record.get("strategy") != names:
        raise AggregationError(
            f"the checkpoint belongs to strategy {' over '.join(record.get('strategy') or ['none'])}, the job has "
            f"{' over '.join(names)}: resume with the strategy it was started with"
        )
    for depth, (part, saved) in enumerate(zip(wrapped(strategy), record["parts"], strict=True)):
        for name, layout in saved["arrays"].items():
            found = {key: tensors[f"{depth}/{name}/{key}"] for key in layout["keys"]}
            setattr(part, name, _MAKERS[layout["kind"]](found))
        for name, value in saved["numbers"].items():
            setattr(part, name, value)
        if "accountant" in saved:
            part.accountant.load_state_dict(saved["accountant"])  # type: ignore[attr-defined]


def _arrays(value: object) -> tuple[str, dict[str, np.ndarray[Any, Any]]] | None:
    """The kind of container and its arrays by name, if `value` is one that strategies keep arrays in."""
    if isinstance(value, ArrayRecord):
        return "record", {name: array.numpy() for name, array in value.items()}
    if isinstance(value, dict) and value and all(isinstance(item, np.ndarray | np.generic) for item in value.values()):
        return "dict", {str(name): np.asarray(item) for name, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, np.ndarray | np.generic) for item in value):
        return "list", {str(index): np.asarray(item) for index, item in enumerate(value)}
    return None


_MAKERS: dict[str, Callable[[Tensors], Any]] = {
    "record": to_record,
    "dict": lambda found: {name: value.numpy().copy() for name, value in found.items()},
    "list": lambda found: [value.numpy().copy() for value in found.values()],
}

"""What crosses a cut: named tensors with the batch in front, whatever the model's own values look like."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from splitfl.model.errors import CutError

Path = tuple[int | str, ...]
SCALARS = {bool: torch.bool, int: torch.int64, float: torch.float64}
CONSTANTS = (type(None), str, torch.dtype, torch.layout, torch.memory_format, torch.device)
CONTAINERS = (tuple, list, dict, torch.Size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A tensor that enters or leaves a stage.

    shape is that of one sample where `batched` (the tensor on the wire is (samples, *shape)), else the whole shape.
    Only ports with `requires_grad` have a gradient, which has the tensor's own shape.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    batched: bool = True
    requires_grad: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of one sample; of the whole tensor where it is not batched."""
        return prod(self.shape) * self.dtype.itemsize


class Layout(NamedTuple):
    """Where the batch is in the model's own tensor: dimension `axis` holds samples x `factor`."""

    axis: int = 0
    factor: int = 1


class Crossing(NamedTuple):
    """A port, and how the model's own value becomes it: a number without dimensions, a tensor by its layout."""

    port: Port
    path: Path
    layout: Layout = Layout()
    number: bool = False


def named_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested tuples, lists, dicts and dataclasses, each with its path."""
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    else:
        yield path, value
        return
    for key, part in parts:
        yield from named_leaves(part, (*path, key))


def rebuild(value: Any, make: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """`value` as plain tuples, lists and dicts, with `make(path, leaf)` in the place of each leaf."""
    if type(value) is dict:
        return {key: rebuild(part, make, (*path, key)) for key, part in value.items()}
    if type(value) in (tuple, torch.Size):
        return tuple(rebuild(part, make, (*path, index)) for index, part in enumerate(value))
    if type(value) is list:
        return [rebuild(part, make, (*path, index)) for index, part in enumerate(value)]
    return make(path, value)


def port_name(name: str, path: Path) -> str:
    """`name` of a value, extended by the path of one of its leaves: `lstm.1.0`."""
    return ".".join([name, *map(str, path)])


def crossings(name: str, small: Any, large: Any, batches: tuple[int, int]) -> tuple[Crossing, ...]:
    """How the value `name` crosses, from its two probed values at the two batch sizes.

    Raises CutError where a part of it is neither tensor nor number, or depends on the batch in another way than having
    samples along one dimension.
    """
    found = []
    _require_plain(name, small)
    other = dict(named_leaves(large))
    for path, leaf in named_leaves(small):
        if isinstance(leaf, CONSTANTS):
            continue
        label = port_name(name, path)
        if type(leaf) in SCALARS:
            port = Port(name=label, dtype=SCALARS[type(leaf)], shape=(), batched=False)
            found.append(Crossing(port, path, number=True))
        elif isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            port, layout = tensor_port(label, leaf, other[path], batches)
            found.append(Crossing(port, path, layout))
        else:
            raise CutError(f"value {label!r} is a {type(leaf).__name__}, which cannot cross a cut: cut elsewhere")
    return tuple(found)


def _require_plain(name: str, value: Any) -> None:
    parts: Any = (
        value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, (tuple, list)) else ())
    )
    if isinstance(value, (*CONTAINERS, Mapping)) or dataclasses.is_dataclass(value):
        if type(value) not in CONTAINERS:
            raise CutError(f"value {name!r} is a {type(value).__name__}, which cannot cross a cut: cut elsewhere")
        for key, part in parts:
            if isinstance(value, dict) and not isinstance(key, str):
                raise CutError(
                    f"value {name!r} is a dict with the key {key!r}, which cannot cross a cut: cut elsewhere"
                )
            _require_plain(f"{name}.{key}", part)


def tensor_port(name: str, small: torch.Tensor, large: torch.Tensor, batches: tuple[int, int]) -> tuple[Port, Layout]:
    """The port and the layout of a tensor that had these two values at the two batch sizes."""
    shape = tuple(small.shape)
    varying = [axis for axis, size in enumerate(shape) if large.dim() == len(shape) and large.shape[axis] != size]
    dtype, grad = small.dtype, small.requires_grad
    if large.dim() == len(shape) and not varying:
        return Port(name=name, dtype=dtype, shape=shape, batched=False, requires_grad=grad), Layout()
    axis = varying[0] if len(varying) == 1 else -1
    factor = shape[axis] // batches[0] if axis >= 0 else 0
    if axis < 0 or (shape[axis], large.shape[axis]) != (factor * batches[0], factor * batches[1]):
        raise CutError(
            f"value {name!r} has shape {shape} for {batches[0]} samples and {tuple(large.shape)} for {batches[1]}: "
            "a value that crosses a cut must have its samples along one dimension; cut elsewhere"
        )
    inner = (factor,) if factor > 1 else ()
    rest = shape[:axis] + shape[axis + 1 :]
    return Port(name=name, dtype=dtype, shape=inner + rest, requires_grad=grad), Layout(axis, factor)


def storage(tensor: torch.Tensor) -> int:
    """Address of the memory behind a tensor: equal for views of one another; 0 for an empty tensor."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0

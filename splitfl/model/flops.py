"""Floating-point operations of a piece of code, and what it does that is not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from splitfl.model.probe import undisturbed
from splitfl.model.signature import Tensors
from splitfl.model.trace import Trace

CHEAP = frozenset(
    {"clone", "detach", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "empty_like", "_unsafe_view"}
)
"""Operations that move memory and calculate nothing."""


def _rnn_flops(inputs: Any, weight: Any, hidden_weight: Any, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    """Multiplications and additions of one layer and direction of an LSTM or GRU as oneDNN runs it."""
    del args, out_val, kwargs
    return int(2 * inputs[0] * inputs[1] * (prod(weight) + prod(hidden_weight)))


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    """Multiplications and additions of scaled dot-product attention: two batched matrix products."""
    del args, out_val, kwargs
    batch, heads, length, width = query
    return int(2 * batch * heads * length * key[2] * (width + value[3]))


MORE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.mkldnn_rnn_layer: _rnn_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}


@dataclass(slots=True)
class Count:
    """Operations so far (a multiplication and an addition are two), and names of the operations left out."""

    counter: FlopCounterMode
    uncounted: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """Operations so far."""
        return self.counter.get_total_flops()


class _Uncounted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, names: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        cheap = (
            torch.Tag.pointwise in func.tags
            or torch.Tag.nondeterministic_seeded in func.tags
            or func.is_view
            or name in CHEAP
            or not _tensors(args)
        )
        if not cheap and packet not in flop_registry and packet not in MORE:
            self._names.add(name)
        return func(*args, **(kwargs or {}))


def _tensors(args: Any) -> bool:
    return any(isinstance(arg, torch.Tensor) or (isinstance(arg, (list, tuple)) and _tensors(arg)) for arg in args)


@contextmanager
def counting() -> Iterator[Count]:
    """Count what the body computes. Elementwise operations and copies count as nothing, and are not listed either."""
    counter = FlopCounterMode(display=False, custom_mapping=MORE)
    count = Count(counter)
    with _Uncounted(count.uncounted), counter:
        yield count


class _Counter(fx.Interpreter):
    def __init__(self, traced: Trace, count: Count) -> None:
        super().__init__(traced.model, graph=traced.graph)
        self._count = count
        self.spent: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = self._count.total
        value = super().run_node(n)
        self.spent[n] = self._count.total - before
        return value


def flops_by_node(traced: Trace, batch: Tensors) -> tuple[dict[fx.Node, int], tuple[str, ...]]:
    """Operations of each node of a trace in a forward on `batch`, and the names of those that are not counted."""
    with undisturbed(traced.model), counting() as count, torch.no_grad():
        interpreter = _Counter(traced, count)
        interpreter.run(*batch.values(), enable_io_processing=False)
    return interpreter.spent, tuple(sorted(count.uncounted))

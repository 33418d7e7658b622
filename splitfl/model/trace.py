"""From a module to a graph of its operations: by torch.fx, or by torch.export where torch.fx cannot follow.

A trace is taken in training mode, and what Python decided then (`if self.training`, a loop's length, a default
argument) is fixed in it. It therefore serves for training; evaluate with the module itself.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import fx, nn

from splitfl.model.errors import CutError
from splitfl.model.probe import LARGE, device_of, undisturbed
from splitfl.model.random_state import ForeignDraws, drawn, snapshot
from splitfl.model.signature import Signature, Tensors, rows
from splitfl.model.transformer import UNROLLED

How = Literal["auto", "fx", "export"]
Way = Literal["fx", "export"]
COMPUTE = ("call_module", "call_function", "call_method")
BOOKKEEPING = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A graph over the modules, parameters and buffers of `model`, under its own names.

    output_spec rebuilds the model's output from the graph's flat one, where torch.export made the graph.
    """

    model: nn.Module
    graph: fx.Graph
    output_spec: Any = None

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The placeholders, in the order of the signature's names."""
        return tuple(self.graph.find_nodes(op="placeholder"))

    @property
    def computed(self) -> list[fx.Node]:
        """The nodes that compute something, in order."""
        return [node for node in self.graph.nodes if node.op in COMPUTE]


def ways(method: str) -> tuple[Way, ...]:
    """The ways of tracing to try, in order; raises CutError for an unknown `method`."""
    if method == "auto":
        return ("fx", "export")
    if method not in ("fx", "export"):
        raise CutError(f"method={method!r}: expected 'auto', 'fx' or 'export'")
    return ("fx",) if method == "fx" else ("export",)


def trace(model: nn.Module, signature: Signature, values: Tensors, *, way: Way) -> Trace:
    """Trace `model`, which is in training mode and is not changed but for constants that the trace adds to it.

    Raises CutError with the tracer's own reason.
    """
    foreign = ForeignDraws()
    try:
        with undisturbed(model):
            return _by_fx(model, signature) if way == "fx" else _by_export(model, signature, values)
    except Exception as error:  # a trace runs the user's forward, which can raise anything
        raise CutError(_first_line(error)) from error
    finally:
        foreign.restore()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class _Tracer(fx.Tracer):
    """Follows the user's modules; leaves those of torch.nn whole, except for stacks of transformer layers."""

    def __init__(self, signature: Signature) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self._signature = signature

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Placeholders for the inputs of the example; any other argument keeps its default."""
        del is_module, concrete_args
        root_fn = UNROLLED.get(type(self.root), root_fn)
        proxies = {name: self.create_proxy("placeholder", name, (), {}) for name in self._signature.names}
        if self._signature.keyword:
            return partial(root_fn, **proxies), [self.root]
        return root_fn, [self.root, *proxies.values()]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) not in UNROLLED and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if type(m) in UNROLLED:
            forward = partial(UNROLLED[type(m)], m)
        return super().call_module(m, forward, args, kwargs)


def _by_fx(model: nn.Module, signature: Signature) -> Trace:
    device = device_of(model)
    before, foreign = snapshot(device), ForeignDraws()
    graph = _Tracer(signature).trace(model)
    if drawn(before, device) or foreign.happened():
        raise CutError("forward draws random numbers that depend on no input; a trace would repeat the same ones")
    return Trace(model, graph)


def _by_export(model: nn.Module, signature: Signature, values: Tensors) -> Trace:
    batch = rows(values, LARGE)
    dynamic = {name: {0: torch.export.Dim.DYNAMIC} for name in signature.names}
    shapes: Any = dynamic if signature.keyword else tuple(dynamic.values())
    if _gathers_arguments(model):
        shapes = (shapes,)
    args = () if signature.keyword else tuple(batch.values())
    kwargs = batch if signature.keyword else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        module: Any = program.module()
    info = module.graph._codegen.pytree_info
    graph = _cleaned(module.graph)
    for node in graph.find_nodes(op="get_attr"):
        if not _has_attribute(model, node.target):
            _add_constant(model, node, module)
    return Trace(model, graph, info.out_spec)


def _gathers_arguments(model: nn.Module) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _cleaned(exported: fx.Graph) -> fx.Graph:
    """A copy without the checks that hold only for the exported batch size and device."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(exported, copies)
    graph.output(output)
    for node in reversed(list(graph.nodes)):
        name = str(node.target).removeprefix("aten.").split(".")[0]
        if node.op in COMPUTE and not node.users and (name in BOOKKEEPING or node.target == "_guards_fn"):
            graph.erase_node(node)
    return graph


def _has_attribute(model: nn.Module, target: Any) -> bool:
    try:
        _attribute(model, target)
    except AttributeError:
        return False
    return True


def _attribute(model: nn.Module, target: str) -> Any:
    found: Any = model
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _add_constant(model: nn.Module, node: fx.Node, source: nn.Module) -> None:
    """Give `model` a constant that torch.export lifted out of its code, under a flat name."""
    name = str(node.target).replace(".", "_")
    setattr(model, name, _attribute(source, str(node.target)))
    node.target = name

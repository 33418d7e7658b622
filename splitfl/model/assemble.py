"""Builds the module of one stage: a graph from named tensors to named tensors, over the original weights.

    values -> take each input by name -> [the stage's operations] -> {output name: tensor}

Parameters and buffers keep the names that they have in the whole model.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from splitfl.model.boundary import Division, node_crossings, writes_after
from splitfl.model.crossing import Crossing, Layout, Path, rebuild, storage
from splitfl.model.record import Analysis


def as_tensor(number: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without dimensions that carries a Python number across a cut."""
    return torch.tensor(number, dtype=dtype)


def batch_first(tensor: torch.Tensor, axis: int, factor: int) -> torch.Tensor:
    """The model's own tensor with its samples moved to dimension 0, alone there."""
    moved = tensor.movedim(axis, 0)
    return moved if factor == 1 else moved.reshape(-1, factor, *moved.shape[1:])


def batch_back(tensor: torch.Tensor, axis: int, factor: int) -> torch.Tensor:
    """The inverse of `batch_first`."""
    joined = tensor if factor == 1 else tensor.flatten(0, 1)
    return joined.movedim(0, axis)


class Assembly:
    """The graph of one stage while it is built."""

    def __init__(self, analysis: Analysis, division: Division, stage: int) -> None:
        self._analysis = analysis
        self._division = division
        self._stage = stage
        self._graph = fx.Graph()
        self._values = self._graph.placeholder("values")
        self._env: dict[fx.Node, Any] = {}
        self._raw: dict[str, fx.Node] = {}
        self.mutated: set[str] = set()

    def build(self) -> fx.GraphModule:
        """The stage's module; the last stage returns the model's own output, the others a dict by port name."""
        graph, stage = self._analysis.trace.graph, self._stage
        self._receive(self._analysis.trace.inputs if stage == 0 else self._division.boundaries[stage - 1])
        for node in self._analysis.trace.computed:
            if self._division.stage_of[node] == stage:
                self._env[node] = self._graph.node_copy(node, self._local)
                self._env[node].meta = {}
        if stage == self._division.last:
            (output,) = graph.find_nodes(op="output")
            self._graph.output(fx.map_arg(output.args[0], self._local))
        else:
            self._graph.output(self._send(self._division.boundaries[stage]))
        self._graph.lint()
        model = self._analysis.trace.model
        module = fx.GraphModule(model, self._graph, class_name=f"Stage{stage}")
        _keep_only_saved(module, set(model.state_dict()))
        return module

    def _local(self, node: fx.Node) -> Any:
        if node not in self._env:
            if node.op != "get_attr":
                raise RuntimeError(f"stage {self._stage} needs {node.name!r}, which never reaches it")
            self._env[node] = self._graph.get_attr(str(node.target))
        return self._env[node]

    def _receive(self, nodes: tuple[fx.Node, ...]) -> None:
        written = writes_after(self._analysis, self._division, self._stage - 1)
        for node in nodes:
            by_path = {crossing.path: crossing for crossing in node_crossings(self._analysis, node)}

            def make(path: Path, leaf: Any, by_path: dict[Path, Crossing] = by_path) -> Any:
                if path in by_path:
                    return self._take(
                        by_path[path], mutated=isinstance(leaf, torch.Tensor) and storage(leaf) in written
                    )
                return self._call(device_of_values, self._values) if isinstance(leaf, torch.device) else leaf

            self._env[node] = rebuild(self._analysis.small.values[node], make)

    def _take(self, crossing: Crossing, *, mutated: bool) -> fx.Node:
        name = crossing.port.name
        taken = self._call(operator.getitem, self._values, name)
        if crossing.number:
            return self._graph.call_method("item", (taken,))
        if mutated:  # written in place: neither an autograd leaf nor the sender's memory may be
            taken = self._graph.call_method("clone", (taken,))
        else:
            self._raw[name] = taken
        return taken if crossing.layout == Layout() else self._call(batch_back, taken, *crossing.layout)

    def _send(self, nodes: tuple[fx.Node, ...]) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        for node in nodes:
            for crossing in node_crossings(self._analysis, node):
                name = crossing.port.name
                sent[name] = self._raw[name] if name in self._raw else self._give(node, crossing)
        return sent

    def _give(self, node: fx.Node, crossing: Crossing) -> fx.Node:
        value = self._local(node)
        for key in crossing.path:
            value = self._call(operator.getitem, value, key) if isinstance(value, fx.Node) else value[key]
        if crossing.number:
            return self._call(as_tensor, value, crossing.port.dtype)
        if crossing.layout == Layout():
            return value  # type: ignore[no-any-return]
        return self._call(batch_first, value, *crossing.layout)

    def _call(self, function: Any, *args: Any) -> fx.Node:
        return self._graph.call_function(function, args)


def device_of_values(values: dict[str, torch.Tensor]) -> torch.device:
    """The device that a stage runs on: that of the tensors it is given."""
    return next(iter(values.values())).device


def _keep_only_saved(module: nn.Module, saved: set[str]) -> None:
    """Leave constants and non-persistent buffers out of the stage's state, as they are in the model's."""
    for name, _ in module.named_buffers(remove_duplicate=False):
        if name not in saved:
            parent, _, field = name.rpartition(".")
            module.get_submodule(parent)._non_persistent_buffers_set.add(field)

"""Blockwise distillation: a student whose blocks learn, each on its own, what the teacher's blocks do.

    teacher's activation ──> teacher block ──> teacher's activation, to the next stage
                    └──────> student block ──> distance between the two: the stage's loss

Every stage holds a block of both. The teacher's activations are relayed from stage to stage, so each of its blocks
runs once for a mini-batch, and a student block is trained as soon as its own loss is there. (Pipe-BD, arXiv 2301.12443,
sections 3.1 and 3.2.) The teacher is frozen: its weights are in no state, are neither sent nor averaged, and both ends
make it themselves.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from splitfl.model.crossing import Port
from splitfl.model.errors import CutError
from splitfl.model.partition import AUXILIARY, Partition, Stage, one_or_all
from splitfl.model.signature import Tensors

TEACHER = "teacher"


class Frozen(nn.Module):
    """A module that is run without gradients, in evaluation mode, and whose weights are not this module's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._held = [module.eval().requires_grad_(False)]  # in a list: it is no child, so it has no state here

    def forward(self, values: Mapping[str, torch.Tensor]) -> Any:
        with torch.no_grad():
            return self._held[0](values)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Frozen:
        self._held[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def evaluated(model: nn.Module) -> nn.Module:
    """A copy of a teacher to be cut: its parts in evaluation mode, frozen, so that its trace shows them so."""
    copied = copy.deepcopy(model).requires_grad_(False)
    for part in copied.modules():
        part.training = False
    copied.training = True  # of the whole only: cutting traces in training mode, and leaves such parts as they are
    return copied


def with_teacher(student: Partition, teacher: Partition) -> Partition:
    """`student` with a block of `teacher` at each of its stages.

    Raises CutError, naming the stage, where the two are not cut in the same number of blocks, or the student's block
    takes or gives other tensors than the teacher's.
    """
    if len(student.stages) != len(teacher.stages):
        counts = f"{len(teacher.stages)} blocks, and the student in {len(student.stages)}"
        raise CutError(f"the teacher is cut in {counts}, expected the same number")
    if len(student.stages) < 2:
        raise CutError("distillation: the models are not cut, expected one cut or more")
    pairs = list(zip(student.stages, teacher.stages, strict=True))
    received = [teacher.stages[0].inputs, *(stage.outputs for stage in teacher.stages[:-1])]
    stages = tuple(_paired(own, other, ports) for (own, other), ports in zip(pairs, received, strict=True))
    return replace(student, stages=stages)


def _paired(student: Stage, teacher: Stage, ports: tuple[Port, ...]) -> Stage:
    """The stage of both blocks; it receives the teacher's `ports`."""
    inputs = student.inputs if student.index == 0 else tuple(replace(port, requires_grad=False) for port in ports)
    _require_alike(student.index, "takes", student.inputs, ports)
    _require_alike(student.index, "gives", student.outputs, teacher.outputs)
    if student.output_spec is not None or teacher.output_spec is not None:
        raise CutError("distillation: a model whose code cannot be traced symbolically cannot be paired with another")
    body: fx.GraphModule = student.module  # type: ignore[assignment]
    root = copy.deepcopy(body)
    root.add_module(TEACHER, Frozen(copy.deepcopy(teacher.module)))
    graph = fx.Graph()
    values = graph.placeholder("values")
    for_teacher, for_student = (
        graph.call_function(renamed, (values, [port.name for port in inputs], [port.name for port in own]))
        for own in (teacher.inputs if student.index == 0 else ports, student.inputs)
    )
    relayed: Any = graph.call_module(TEACHER, (for_teacher,))
    (placeholder,) = body.graph.find_nodes(op="placeholder")
    made: Any = graph.graph_copy(body.graph, {placeholder: for_student})
    if student.last:
        graph.output((made, relayed))
    else:
        sent = {port.name: graph.call_function(operator.getitem, (relayed, port.name)) for port in teacher.outputs}
        graph.output({**sent, AUXILIARY: (one_or_all(dict(made)), one_or_all(sent))})  # type: ignore[arg-type]
    module = fx.GraphModule(root, graph, class_name=f"Block{student.index}")
    module.train(body.training)
    outputs = student.outputs if student.last else tuple(replace(port, requires_grad=False) for port in teacher.outputs)
    return replace(student, module=module, inputs=inputs, outputs=outputs)


def renamed(values: Mapping[str, torch.Tensor], given: list[str], wanted: list[str]) -> dict[str, torch.Tensor]:
    """The tensors of `values` called `given`, under the names `wanted`."""
    return {name: values[old] for old, name in zip(given, wanted, strict=True)}


def _require_alike(stage: int, verb: str, student: tuple[Port, ...], teacher: tuple[Port, ...]) -> None:
    ours, theirs = ([(port.dtype, port.shape, port.batched) for port in ports] for ports in (student, teacher))
    if ours != theirs:
        raise CutError(
            f"distillation: the student's block {stage} {verb} {_shapes(student)}, the teacher's {_shapes(teacher)}; "
            "expected the same shapes at every cut"
        )


def _shapes(ports: tuple[Port, ...]) -> str:
    return ", ".join(f"{list(port.shape)}" for port in ports)


def distance(pair: tuple[Any, Any], target: Any) -> torch.Tensor:
    """The mean squared distance of a student block's output from the teacher's; there are no labels."""
    del target
    made, wanted = pair
    if isinstance(made, Mapping):
        return torch.stack([nn.functional.mse_loss(*both) for both in _floats(dict(made), wanted)]).mean()
    return nn.functional.mse_loss(made, wanted)


def _floats(made: Tensors, wanted: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = zip(made.values(), wanted.values(), strict=True)
    return [(value, other) for value, other in pairs if value.is_floating_point()]

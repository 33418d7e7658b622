"""A model cut into stages, and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from splitfl.model.assemble import Assembly
from splitfl.model.boundary import Division, divide, node_crossings
from splitfl.model.crossing import Port, named_leaves, port_name, tensor_port
from splitfl.model.errors import CutError, StateError
from splitfl.model.places import locate, places
from splitfl.model.probe import LARGE, SMALL, device_of, run, training_copy, undisturbed
from splitfl.model.random_state import drawn, snapshot
from splitfl.model.record import Analysis, analyze
from splitfl.model.signature import Batch, Signature, Tensors, rows, signature
from splitfl.model.trace import How

OUTPUT = "output"
"""Name of the model's output, extended by the path of a part: `output.0`, `output.logits`."""

AUXILIARY = "auxiliary"
"""Name of an auxiliary network's output in what a stage returns, and the first part of its weights' names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """One stage: a template that every replica copies, never trained itself.

    module      in training mode; its parameters and buffers have the whole model's names
    inputs      ports in the order of the model's code; those of stage 0 are the model's inputs
    outputs     what crosses the next cut; at the last stage, the tensors of the model's output
    parameters  names of the parameters (both names of tied ones)
    buffers     names of the persistent buffers
    random      its forward draws random numbers (dropout)
    last        whether it returns the model's output
    """

    index: int
    module: nn.Module
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    random: bool
    last: bool
    signature: Signature | None = None
    output_spec: Any = None

    @property
    def state(self) -> Tensors:
        """The initial weights: parameters and persistent buffers by name, not copied."""
        return {name: value.detach() for name, value in self.module.state_dict().items()}

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the parameters and persistent buffers."""
        return tuple(self.module.state_dict())

    def apply(self, module: nn.Module, values: Mapping[str, torch.Tensor]) -> Any:
        """Run `module`, a copy of this stage's: a dict by port name, or the model's output at the last stage."""
        if self.signature is not None:
            return self.signature.call(module, values)
        result = module(values)
        return result if self.output_spec is None else self.output_spec.unflatten(list(result))

    def name_outputs(self, result: Any) -> Tensors:
        """The tensors in what `apply` returned, by port name."""
        if self.last:
            return output_tensors(result)
        return {name: tensor for name, tensor in result.items() if name != AUXILIARY}

    def scored(self, result: Any) -> Any:
        """What a loss at this stage is computed of, in what `apply` returned.

        The model's output, or an auxiliary network's, or, without one, the only tensor that leaves, or all by name.
        """
        if self.last or AUXILIARY in result:
            return result if self.last else result[AUXILIARY]
        return one_or_all(dict(result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """A model in stages.

    original  the whole state that the model had, under its own names
    unused    names in it that no stage uses
    example   two samples of the model's inputs, by name
    """

    stages: tuple[Stage, ...]
    cuts: tuple[str, ...]
    signature: Signature
    original: Tensors
    aliases: Mapping[str, str]
    unused: tuple[str, ...]
    example: Tensors

    def bind(self, batch: Batch) -> Tensors:
        """The inputs of stage 0 from a batch given as the example was: a tensor, a tuple or a dict."""
        return self.signature.bind(batch)

    def join(self, states: Sequence[Mapping[str, torch.Tensor]]) -> Tensors:
        """The whole model's state from one state per stage; names that no stage uses keep their original value.

        Raises StateError where a stage's state lacks a name. Tensors are those of `states`, not copies.
        """
        if len(states) != len(self.stages):
            raise StateError(f"{len(states)} states for {len(self.stages)} stages, expected one for each")
        held: Tensors = {}
        for stage, state in zip(self.stages, states, strict=True):
            for name in stage.state_names:
                if name not in state:
                    raise StateError(f"the state of stage {stage.index} lacks {name!r}")
                held.setdefault(name, state[name])
        return {name: held.get(self.aliases.get(name, name), value) for name, value in self.original.items()}


def is_auxiliary(name: str) -> bool:
    """Whether a weight of this name belongs to an auxiliary network, which is no part of the model."""
    return name.split(".", maxsplit=1)[0] == AUXILIARY


def one_or_all(outputs: Tensors) -> Any:
    """The only tensor that leaves a stage, or all of them by name."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def output_tensors(result: Any) -> Tensors:
    """The tensors in a model's output, however nested, by name."""
    return {port_name(OUTPUT, path): leaf for path, leaf in named_leaves(result) if isinstance(leaf, torch.Tensor)}


def partition(model: nn.Module, example_input: Batch, cuts: Sequence[str], *, method: How = "auto") -> Partition:
    """Cut `model` at the places `cuts`, in the order of execution, into len(cuts) + 1 stages.

    A place is the path of a module (the cut is after its last operation), or the name of a functional operation as
    `possible_cuts` lists it. `example_input` is a tensor, a tuple of tensors or a dict of them (by keyword), with the
    batch first; any number of samples will do. The model is traced in training mode, on a copy: neither the model nor
    the random generators change. Without cuts there is one stage: the module itself, not traced.

    Raises ShapeError, naming the layer, where the model does not run on the example, and CutError for a place that is
    unknown, ambiguous, out of order or given twice, a stage that would be empty, weights on both sides of a cut, a
    value that cannot cross, and a model that cannot be traced (`method`: "fx", "export", or "auto" for both).
    """
    if isinstance(cuts, str):
        raise CutError(f"cuts = {cuts!r}: expected a list of places, such as [{cuts!r}]")
    found = signature(model, example_input)
    values = found.bind(example_input)
    copied = training_copy(model)
    if not cuts:
        stages: tuple[Stage, ...] = (_whole(copied, found, values),)
    else:
        analysis = analyze(copied, found, values, method=method)
        positions = locate(cuts, places(analysis.trace), copied)
        division = divide(analysis, positions, cuts)
        stages = tuple(_stage(analysis, division, index) for index in range(len(cuts) + 1))
    return _joined(copied, stages, tuple(cuts), found, rows(values, SMALL))


def _stage(analysis: Analysis, division: Division, index: int) -> Stage:
    module = Assembly(analysis, division, index).build()
    last = index == division.last
    nodes = analysis.trace.inputs if index == 0 else division.boundaries[index - 1]
    if last:
        outputs = _output_ports(*(_output(analysis, recording) for recording in (analysis.small, analysis.large)))
    else:
        outputs = _ports(analysis, division.boundaries[index])
    return _described(
        module,
        index=index,
        inputs=_ports(analysis, nodes),
        outputs=outputs,
        random=any(division.stage_of[node] == index for node in analysis.small.random),
        last=last,
        output_spec=analysis.trace.output_spec if last else None,
    )


def _described(module: nn.Module, **fields: Any) -> Stage:
    saved = tuple(module.state_dict())
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return Stage(
        module=module,
        parameters=tuple(name for name in saved if name in trained),
        buffers=tuple(name for name in saved if name not in trained),
        **fields,
    )


def _ports(analysis: Analysis, nodes: Any) -> tuple[Port, ...]:
    return tuple(crossing.port for node in nodes for crossing in node_crossings(analysis, node))


def _output(analysis: Analysis, recording: Any) -> Any:
    (node,) = analysis.trace.graph.find_nodes(op="output")
    value, spec = recording.values[node], analysis.trace.output_spec
    return value if spec is None else spec.unflatten(list(value))


def _output_ports(small: Any, large: Any) -> tuple[Port, ...]:
    other = output_tensors(large)
    return tuple(_described_output(name, leaf, other[name]) for name, leaf in output_tensors(small).items())


def _described_output(name: str, small: torch.Tensor, large: torch.Tensor) -> Port:
    try:
        return tensor_port(name, small, large, (SMALL, LARGE))[0]
    except CutError:  # it crosses no cut, so any shape will do
        shape = tuple(small.shape)
        return Port(name=name, dtype=small.dtype, shape=shape, batched=False, requires_grad=small.requires_grad)


def _whole(model: nn.Module, found: Signature, values: Tensors) -> Stage:
    device = device_of(model)
    outputs = []
    for size in (SMALL, LARGE):
        with undisturbed(model):
            before = snapshot(device)
            outputs.append(run(model, found, rows(values, size)))
            random = drawn(before, device)
    inputs = tuple(Port(name=name, dtype=value.dtype, shape=tuple(value.shape[1:])) for name, value in values.items())
    return _described(
        model, index=0, inputs=inputs, outputs=_output_ports(*outputs), random=random, last=True, signature=found
    )


def _joined(
    model: nn.Module, stages: tuple[Stage, ...], cuts: tuple[str, ...], found: Signature, example: Tensors
) -> Partition:
    kept = model.state_dict(keep_vars=True)
    held = {id(kept[name]): name for stage in reversed(stages) for name in stage.state_names}
    names = {name for stage in stages for name in stage.state_names}
    aliases = {name: held[id(value)] for name, value in kept.items() if name not in names and id(value) in held}
    return Partition(
        stages=stages,
        cuts=cuts,
        signature=found,
        original={name: value.detach().clone() for name, value in kept.items()},
        aliases=aliases,
        unused=tuple(name for name in kept if name not in names and name not in aliases),
        example=example,
    )

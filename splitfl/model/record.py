"""One run of a traced graph, node by node: its values, who writes in place and who draws random numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from splitfl.model.crossing import named_leaves, storage
from splitfl.model.errors import CutError, ShapeError
from splitfl.model.probe import LARGE, SMALL, Outcome, agrees, device_of, outcome, run
from splitfl.model.random_state import drawn, snapshot
from splitfl.model.signature import Signature, Tensors, rows
from splitfl.model.trace import How, Trace, trace, ways


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What happened in one run.

    values    what each node returned
    writes    (node, address) for each node that changed memory it was given
    random    nodes that drew random numbers
    changed   names of the buffers that the run changed
    """

    values: dict[fx.Node, Any]
    writes: list[tuple[fx.Node, int]]
    random: frozenset[fx.Node]
    changed: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """A trace with its recordings at two batch sizes; every decision about cuts is taken from this."""

    trace: Trace
    signature: Signature
    small: Recording
    large: Recording


def analyze(model: nn.Module, signature: Signature, values: Tensors, *, method: How = "auto") -> Analysis:
    """Trace `model` (in training mode) and record it, undisturbed.

    A trace must give the outputs, buffers and gradients of the model itself; otherwise the next way is tried.
    Raises ShapeError where the model does not run on the example, and CutError, with all reasons, where no way works.
    """
    expected = {size: _reference(model, signature, rows(values, size)) for size in (SMALL, LARGE)}
    with suppress(ShapeError):  # not every model takes a single sample: BatchNorm does not
        expected[1] = _reference(model, signature, rows(values, 1))
    refused = []
    for way in ways(method):
        try:
            return _verified(trace(model, signature, values, way=way), signature, values, expected)
        except CutError as error:
            refused.append(f"torch.{way}: {error}")
    why = "; ".join(refused)
    raise CutError(f"{type(model).__name__} cannot be traced, so it cannot be cut (cuts = [] trains it whole); {why}")


def _verified(traced: Trace, signature: Signature, values: Tensors, expected: dict[int, Outcome]) -> Analysis:
    recordings = {}
    for size, wanted in expected.items():
        recordings[size], found = record(traced, rows(values, size))
        for what, ours, theirs in zip(Outcome._fields, found, wanted, strict=True):
            if not agrees(ours, theirs):
                raise CutError(f"the trace gives other {what} than the model itself with a batch of {size}")
    return Analysis(traced, signature, recordings[SMALL], recordings[LARGE])


class _Recorder(fx.Interpreter):
    """Runs a graph and notes what every node does besides returning a value."""

    def __init__(self, traced: Trace) -> None:
        super().__init__(traced.model, garbage_collect_values=False, graph=traced.graph)
        self.writes: list[tuple[fx.Node, int]] = []
        self.random: set[fx.Node] = set()
        self._device = device_of(traced.model)

    def run_node(self, n: fx.Node) -> Any:
        given = [leaf for node in n.all_input_nodes for _, leaf in named_leaves(self.env[node])]
        versions = [(leaf, leaf._version) for leaf in given if isinstance(leaf, torch.Tensor)]
        before = snapshot(self._device)
        value = super().run_node(n)
        self.writes += [(n, storage(leaf)) for leaf, version in versions if leaf._version != version]
        if drawn(before, self._device):
            self.random.add(n)
        return value


def _reference(model: nn.Module, signature: Signature, values: Tensors) -> Outcome:
    return outcome(model, lambda: run(model, signature, values))


def record(traced: Trace, batch: Tensors) -> tuple[Recording, Outcome]:
    """Run the graph undisturbed, and note what happened and what came out."""
    before = {name: buffer.detach().clone() for name, buffer in traced.model.named_buffers()}
    recorder = _Recorder(traced)
    found = outcome(traced.model, lambda: _run_trace(traced, recorder, batch))
    changed = frozenset(name for name, buffer in found.buffers.items() if not agrees(buffer, before[name]))
    return Recording(dict(recorder.env), recorder.writes, frozenset(recorder.random), changed), found


def _run_trace(traced: Trace, recorder: _Recorder, batch: Tensors) -> Any:
    try:
        output = recorder.run(*batch.values(), enable_io_processing=False)
    except Exception as error:
        size = next(iter(batch.values())).shape[0]
        raise CutError(f"the trace fails with a batch of {size} where the model does not: {error}") from error
    return output if traced.output_spec is None else traced.output_spec.unflatten(list(output))

"""What the stages of a partition cost: plain numbers, so that planning needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from splitfl.model.crossing import storage
from splitfl.model.flops import counting
from splitfl.model.partition import Partition, Stage
from splitfl.model.probe import SMALL, undisturbed
from splitfl.model.signature import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """Costs of one stage; FLOPs and bytes are per sample unless said otherwise.

    flops_forward          a multiplication and an addition are two
    flops_backward_input   as many as the forward
    flops_backward_weight  as many as the forward; none without trainable weights
    parameter_bytes        of all weights
    trainable_bytes        of the weights that the optimizer moves
    state_bytes            of weights and persistent buffers: what aggregation sends
    activation_bytes       what leaves for the next stage
    activation_fixed_bytes what leaves with it per micro-batch, whatever its size
    gradient_bytes         what comes back for those activations
    stash_bytes            what a forward keeps for its backward
    uncounted              operations that the FLOPs leave out
    """

    index: int
    flops_forward: float
    flops_backward_input: float
    flops_backward_weight: float
    parameter_bytes: float
    trainable_bytes: float
    state_bytes: float
    activation_bytes: float
    activation_fixed_bytes: float
    gradient_bytes: float
    stash_bytes: float
    uncounted: tuple[str, ...] = ()


def profile(partition: Partition) -> tuple[StageProfile, ...]:
    """Run every stage once on two samples of the example, undisturbed, and report what it took."""
    values, profiles = partition.example, []
    for stage in partition.stages:
        found, values = profile_stage(stage, values)
        profiles.append(found)
    return tuple(profiles)


def profile_stage(stage: Stage, values: Tensors) -> tuple[StageProfile, Tensors]:
    """Run one stage once on two samples of its inputs, undisturbed: what it took, and its outputs."""
    with undisturbed(stage.module), torch.no_grad(), counting() as count:
        stage.apply(stage.module, values)
    outputs, stash = _stash_bytes(stage, values)
    return _profile(stage, count.total / SMALL, stash / SMALL, tuple(sorted(count.uncounted))), outputs


def _stash_bytes(stage: Stage, values: Tensors) -> tuple[Tensors, float]:
    """Outputs of a forward, and the memory that autograd keeps after it besides the weights."""
    weights = {storage(tensor) for tensor in (*stage.module.parameters(), *stage.module.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if storage(tensor) not in weights:
            kept[storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    ports = {port.name: port for port in stage.inputs}
    received = {name: value.detach().requires_grad_(ports[name].requires_grad) for name, value in values.items()}
    with undisturbed(stage.module), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = stage.name_outputs(stage.apply(stage.module, received))
    return {name: value.detach() for name, value in outputs.items()}, float(sum(kept.values()))


def _profile(stage: Stage, flops: float, stash: float, uncounted: tuple[str, ...]) -> StageProfile:
    ports = () if stage.last else stage.outputs
    parameters = list(stage.module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return StageProfile(
        index=stage.index,
        flops_forward=flops,
        flops_backward_input=flops,
        flops_backward_weight=flops if trained else 0.0,
        parameter_bytes=_bytes(parameters),
        trainable_bytes=_bytes(trained),
        state_bytes=_bytes(list(stage.state.values())),
        activation_bytes=float(sum(port.bytes for port in ports if port.batched)),
        activation_fixed_bytes=float(sum(port.bytes for port in ports if not port.batched)),
        gradient_bytes=float(sum(port.bytes for port in ports if port.batched and port.requires_grad)),
        stash_bytes=stash,
        uncounted=uncounted,
    )


def _bytes(tensors: list[nn.Parameter] | list[torch.Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))

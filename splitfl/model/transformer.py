"""torch.nn's stacks of transformer layers, unrolled while tracing so that one can cut between their layers.

Their own `forward` looks at the values of masks, which a symbolic trace cannot follow. In training mode it comes down
to the loops below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import wrap


@wrap
def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask that is added to attention scores, as torch.nn makes it of a boolean one."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


@wrap
def is_causal_mask(mask: Tensor | None, hint: bool | None, source: Tensor, batch_first: bool) -> bool:
    """Whether `mask` is the causal one for the length of `source`; a `hint` decides without looking."""
    if hint is not None or mask is None:
        return bool(hint)
    length = source.shape[1 if batch_first and source.dim() > 2 else 0]
    causal = nn.Transformer.generate_square_subsequent_mask(length, device=mask.device, dtype=mask.dtype)
    return mask.shape == causal.shape and bool((mask == causal).all())


def encoder(
    module: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """What nn.TransformerEncoder computes in training mode."""
    if src_key_padding_mask is not None:
        src_key_padding_mask = additive_mask(src_key_padding_mask, src.dtype)
    causal: Any = bool(is_causal)
    if mask is not None:
        mask = additive_mask(mask, src.dtype)
        causal = is_causal_mask(mask, is_causal, src, module.layers[0].self_attn.batch_first)
    output = src
    for layer in module.layers:
        output = layer(output, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask)
    return output if module.norm is None else module.norm(output)


def decoder(
    module: Any,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """What nn.TransformerDecoder computes."""
    causal: Any = bool(tgt_is_causal)
    if tgt_mask is not None:
        causal = is_causal_mask(tgt_mask, tgt_is_causal, tgt, module.layers[0].self_attn.batch_first)
    output = tgt
    for layer in module.layers:
        output = layer(
            output,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=causal,
            memory_is_causal=memory_is_causal,
        )
    return output if module.norm is None else module.norm(output)


UNROLLED: dict[type[nn.Module], Callable[..., Any]] = {nn.TransformerEncoder: encoder, nn.TransformerDecoder: decoder}

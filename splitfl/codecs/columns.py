"""Leaving out columns that are zero for every sample: they arrive as zero, so nothing is lost but the sign of a zero.

    (samples, *shape) ──> (samples, features) ──> (samples, columns), and which features those are

Made for activations whose features were dropped (`feature-dropout`), and for the gradients that come back for them.
"""

from __future__ import annotations

import torch

from splitfl.codecs.sparse import positions_size
from splitfl.codecs.spec import Spec


def features(spec: Spec) -> int:
    """Columns of a tensor that is seen as (samples, features); its first dimension are the samples."""
    return spec.elements // spec.shape[0]


def narrowed(spec: Spec, columns: int) -> Spec:
    """What is sent of a tensor of which so many columns are there."""
    return Spec(spec.dtype, (spec.shape[0], columns))


def places_size(spec: Spec, columns: int) -> int:
    """Bytes that say which columns are there."""
    return positions_size(features(spec), columns)


def used_columns(matrix: torch.Tensor) -> torch.Tensor:
    """Ascending numbers of the columns of (samples, features) that are not all zero; the first one where all are.

    NaN is not zero.
    """
    used = (matrix != 0).any(dim=0)
    used[0] |= ~used.any()
    return used.nonzero().reshape(-1)


def widened(sent: torch.Tensor, columns: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The tensor of `spec` with the columns of `sent` in their places, and zeros elsewhere."""
    whole = torch.zeros(spec.shape, dtype=spec.dtype)
    whole.view(spec.shape[0], -1)[:, columns] = sent
    return whole

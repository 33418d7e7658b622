"""What can be wrong with a model, a cut, a loss or a set of weights."""

from __future__ import annotations

from splitfl.errors import SplitflError


class CutError(SplitflError):
    """The model cannot be cut where it was asked, or cannot be traced."""


class ShapeError(SplitflError):
    """The model does not run on the example input; names the layer that fails and what it was given."""


class LossError(SplitflError):
    """The loss is neither a mean nor a sum over samples."""


class StateError(SplitflError):
    """Weights or values that do not belong to this stage: a name is missing or a shape differs."""


class TransformError(SplitflError):
    """A transform at the cut that does not exist, or that gives another kind of tensor than it was given."""

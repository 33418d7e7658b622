"""The losses that a job may name: functions of torch.nn.functional that compare an output with a target."""

from __future__ import annotations

import inspect

from torch.nn import functional

from splitfl.config.error import suggestion
from splitfl.config.reference import split_reference


def _compares_two(name: str) -> bool:
    found = getattr(functional, name)
    if name.startswith("_") or not inspect.isfunction(found):
        return False
    parameters = inspect.signature(found).parameters.values()
    return "reduction" in found.__annotations__ and sum(p.default is p.empty for p in parameters) == 2


LOSSES = frozenset(name for name in dir(functional) if _compares_two(name))
"""Names of torch.nn.functional that take (output, target) and a `reduction`."""


def check_loss(name: str) -> None:
    """Raise ValueError unless `name` is one of LOSSES or a reference such as "file.py:function"."""
    if ":" in name:
        split_reference(name)
    elif name not in LOSSES:
        raise ValueError(f'{suggestion(name, LOSSES)}; or a function of your own as "file.py:function"')

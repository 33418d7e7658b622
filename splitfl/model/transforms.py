"""The transforms that a job names as text: `feature-dropout:0.25`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from splitfl.model.errors import TransformError
from splitfl.model.feature_dropout import feature_dropout
from splitfl.model.transform import Transform


def parse_transform(text: str) -> Transform:
    """The transform that `text` names: what it is called, and after a colon what it takes.

    Raises TransformError, naming the setting, for another name and for a value that it does not take.
    """
    kind, _, value = text.partition(":")
    if kind not in TRANSFORMS:
        raise TransformError(f"transform = {text!r}: {expected_transform()}")
    return TRANSFORMS[kind](text, value)


def _feature_dropout(text: str, value: str) -> Transform:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise TransformError(
            f"transform = {text!r}: expected the share of the features that is sent, above 0 and up to 1, such as "
            "feature-dropout:0.25"
        )
    return feature_dropout(share)


TRANSFORMS: Mapping[str, Callable[[str, str], Transform]] = {"feature-dropout": _feature_dropout}
"""The transforms by name; each is made of the whole text, for messages, and of what stands after the colon."""


def expected_transform() -> str:
    """What a transform's name may be, for messages."""
    return "expected feature-dropout:SHARE, such as feature-dropout:0.25"

"""The error of this room."""

from splitfl.errors import SplitflError


class DataError(SplitflError):
    """A data set, or a way of dividing it, that cannot work; the message says what would."""

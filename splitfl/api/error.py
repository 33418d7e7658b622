"""What is wrong with a job."""

from splitfl.errors import SplitflError


class JobError(SplitflError):
    """A setting of a job that cannot work; the message names it, its value and what would be right."""

"""The root of every error that splitfl raises for its user."""


class SplitflError(Exception):
    """Something the user can put right; the message names the setting, the value and what would be right."""

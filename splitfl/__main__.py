"""`python -m splitfl` is the command `splitfl`."""

from splitfl.cli import main

main()

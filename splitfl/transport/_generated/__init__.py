"""Written by proto/generate.py; seen by splitfl.transport.proto only."""

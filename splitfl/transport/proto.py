"""Protobuf's own classes for our messages: the one place that sees generated code.

Nothing on the way of a tensor uses them. They are the reference that the hand-written encoders are held against, and
what a Python program that is no part of splitfl would use.
"""

from splitfl.transport._generated.splitfl.v1.frame_pb2 import Frame
from splitfl.transport._generated.splitfl.v1.session_pb2 import Envelope

__all__ = ["Envelope", "Frame"]

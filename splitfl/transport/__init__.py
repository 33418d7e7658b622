"""Sessions between two ends: messages found by name, over gRPC or in memory, with a deadline on every wait."""

from splitfl.transport.base import Channel as Channel
from splitfl.transport.base import ChannelClosed as ChannelClosed
from splitfl.transport.base import ChannelLimits as ChannelLimits
from splitfl.transport.base import DeadlineExceeded as DeadlineExceeded
from splitfl.transport.base import TransportError as TransportError
from splitfl.transport.gate import SessionLimits as SessionLimits
from splitfl.transport.grpc import Server as Server
from splitfl.transport.grpc import connect as connect
from splitfl.transport.grpc import serve as serve
from splitfl.transport.health import check_health as check_health
from splitfl.transport.memory import memory_pair as memory_pair
from splitfl.transport.shaped import Link as Link
from splitfl.transport.shaped import Way as Way
from splitfl.transport.tls import ClientTLS as ClientTLS
from splitfl.transport.tls import ServerTLS as ServerTLS
from splitfl.transport.tls import make_certificates as make_certificates
from splitfl.transport.tls import make_client_certificate as make_client_certificate

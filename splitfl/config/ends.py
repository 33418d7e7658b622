"""The sections of a job file that are each end's own affair: [server] and [client]."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from splitfl.config.section import Address, Positive, Seconds, Section, Text


def _quorum(value: object) -> object:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value == "all" or (isinstance(value, int) and number and value >= 1):
        return value
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise ValueError('expected a number of clients from 1, a share below 1 such as 0.75, or "all"')


def _names(value: object) -> object:
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) and part for part in value):
        return tuple(value)
    raise ValueError("expected a list of names")


class ServerTls(Section):
    """[server] tls: files of the server's certificate and key, and of the authority that signed the clients'."""

    certificate: Text
    key: Text
    client_ca: Text | None = None


class DeadlineSettings(Section):
    """[server] deadlines, in seconds.

    enrollment  for all clients to enroll
    step        for one message of a mini-batch
    round       for a whole round
    rejoin      for a client that lost its connection to come back; 0 goes on without it at once
    """

    enrollment: Seconds = 300.0
    step: Seconds = 120.0
    round: Seconds = 3600.0
    rejoin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0


class StragglerSettings(Section):
    """[server] stragglers: when a round closes without some of its clients, and what becomes of them.

    quorum  clients whose work makes a round: a number, a share of those asked, or "all"; with fewer training ends
    grace   seconds that the others have once the quorum is there; unless given, until the round's deadline
    late    "drop": a late client leaves the training; "skip": it is left out of this round and asked in the next
    """

    quorum: Annotated[int | float | Literal["all"], BeforeValidator(_quorum)] = 1
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    late: Literal["drop", "skip"] = "drop"


class LimitSettings(Section):
    """[server] limits: what the server takes from others.

    message              bytes of one bundle of tensors; unless given, what the job's largest needs, with room to spare
    sessions             connections at the same time
    sessions_per_minute  new connections of one host in a minute
    """

    message: Positive | None = None
    sessions: Positive = 1024
    sessions_per_minute: Positive = 600


class ServerSettings(Section):
    """[server]: where it listens, with what identity, how long it waits and how much it computes at once.

    insecure   allow plain text beyond loopback
    tokens     file of the tokens' digests, as `splitfl tokens` makes it; everybody must then show a token
    observers  names that may look on but not train, where certificates say who somebody is
    slots      instructions computed at the same time; as many as there are cores unless given
    """

    address: Address = "127.0.0.1:9070"
    tls: ServerTls | None = None
    insecure: bool = False
    tokens: Text | None = None
    observers: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    deadlines: DeadlineSettings = Field(default_factory=DeadlineSettings)
    stragglers: StragglerSettings = Field(default_factory=StragglerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    slots: Positive | None = None


class ClientTls(Section):
    """[client] tls: file of the authority that signed the server's certificate, and the client's own if it is asked."""

    ca: Text
    certificate: Text | None = None
    key: Text | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: one of them is missing")
        return self


class ClientSettings(Section):
    """[client]: the server to go to, how to trust it, and who this client is.

    token  file of this client's secret, as `splitfl tokens` makes it
    state  folder in which the client keeps what is its own between rounds, to survive being killed
    link_key  file of the secret that holders of features of the same samples share, and the server does not have
    """

    server: Address | None = None
    tls: ClientTls | None = None
    insecure: bool = False
    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")] | None = None
    token: Text | None = None
    state: Text | None = None
    link_key: Text | None = None

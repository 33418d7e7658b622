# ruff: noqa
# fmt: off
# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_ACT: _ClassVar[Kind]
    KIND_GRAD: _ClassVar[Kind]
    KIND_PARAMS: _ClassVar[Kind]
    KIND_AVG: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_ACT: Kind
KIND_GRAD: Kind
KIND_PARAMS: Kind
KIND_AVG: Kind

class Envelope(_message.Message):
    __slots__ = ("hello", "welcome", "begin", "report", "refuse", "finish", "part", "status")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REFUSE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    begin: Begin
    report: Report
    refuse: Refuse
    finish: Finish
    part: Part
    status: Status
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., refuse: _Optional[_Union[Refuse, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "client", "fingerprint", "samples", "software", "token", "instance", "session", "turn", "steps", "role", "links")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client: str
    fingerprint: str
    samples: int
    software: str
    token: str
    instance: str
    session: str
    turn: int
    steps: int
    role: str
    links: str
    def __init__(self, protocol: _Optional[int] = ..., client: _Optional[str] = ..., fingerprint: _Optional[str] = ..., samples: _Optional[int] = ..., software: _Optional[str] = ..., token: _Optional[str] = ..., instance: _Optional[str] = ..., session: _Optional[str] = ..., turn: _Optional[int] = ..., steps: _Optional[int] = ..., role: _Optional[str] = ..., links: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "client", "clients", "settings", "links")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    session: str
    client: int
    clients: int
    settings: str
    links: str
    def __init__(self, session: _Optional[str] = ..., client: _Optional[int] = ..., clients: _Optional[int] = ..., settings: _Optional[str] = ..., links: _Optional[str] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("round", "seed", "opening", "programs", "closing", "plan", "first", "phase")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    round: int
    seed: int
    opening: str
    programs: _containers.RepeatedScalarFieldContainer[str]
    closing: str
    plan: _containers.RepeatedCompositeFieldContainer[Step]
    first: int
    phase: str
    def __init__(self, round: _Optional[int] = ..., seed: _Optional[int] = ..., opening: _Optional[str] = ..., programs: _Optional[_Iterable[str]] = ..., closing: _Optional[str] = ..., plan: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., first: _Optional[int] = ..., phase: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("program", "samples")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    program: int
    samples: int
    def __init__(self, program: _Optional[int] = ..., samples: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("round", "samples", "metrics", "trace")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    round: int
    samples: int
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    trace: _containers.RepeatedCompositeFieldContainer[Traced]
    def __init__(self, round: _Optional[int] = ..., samples: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., trace: _Optional[_Iterable[_Union[Traced, _Mapping]]] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Traced(_message.Message):
    __slots__ = ("instruction", "start", "end", "nbytes")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    instruction: str
    start: float
    end: float
    nbytes: int
    def __init__(self, instruction: _Optional[str] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Refuse(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("round", "step", "kind", "stage", "client", "micro_batch", "chunk", "size", "number", "payload")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    kind: Kind
    stage: int
    client: int
    micro_batch: int
    chunk: int
    size: int
    number: int
    payload: bytes
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., stage: _Optional[int] = ..., client: _Optional[int] = ..., micro_batch: _Optional[int] = ..., chunk: _Optional[int] = ..., size: _Optional[int] = ..., number: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

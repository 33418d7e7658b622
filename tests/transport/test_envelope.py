"""Envelopes: the hand-written bytes equal protobuf's, both ways, and noise raises one kind of error."""

import contextlib
import math
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs.proto3 import bytes_field, length_header, uint_field
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import proto
from splitfl.transport.control import CONTROLS
from splitfl.transport.envelope import EnvelopeError, Part, bundle_size, decode, encode_control, encode_parts
from splitfl.transport.messages import (
    PROTOCOL,
    Address,
    Begin,
    Finish,
    Hello,
    Refuse,
    Report,
    Step,
    Traced,
    Welcome,
    version_refusal,
)
from splitfl.transport.part import KINDS, PART_SIZE, SLACK

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
DOUBLE = st.floats(allow_nan=False)

CONTROL = st.one_of(
    st.builds(Hello, UINT32, TEXT, TEXT, UINT64, TEXT, TEXT, TEXT, TEXT, UINT32, UINT32),
    st.builds(Welcome, TEXT, UINT32, UINT32, TEXT),
    st.builds(
        Begin,
        round=UINT32,
        seed=UINT64,
        opening=TEXT,
        programs=st.lists(TEXT, max_size=3).map(tuple),
        closing=TEXT,
        plan=st.lists(st.builds(Step, UINT32, UINT32), max_size=3).map(tuple),
        first=UINT32,
    ),
    st.builds(
        Report,
        UINT32,
        UINT64,
        st.dictionaries(TEXT, DOUBLE, max_size=3),
        st.lists(st.builds(Traced, TEXT, DOUBLE, DOUBLE, UINT64), max_size=3).map(tuple),
    ),
    st.builds(Refuse, TEXT, TEXT),
    st.builds(Finish, TEXT),
)
VALUE = st.builds(Value, st.sampled_from(list(KINDS)), UINT32, st.none() | UINT32, st.none() | UINT32, UINT32)
ADDRESS = st.builds(Address, UINT32, UINT32, VALUE)
NAMES = {number: message.__name__.lower() for number, message in CONTROLS.items()}


def control_by_protobuf(control):
    """The envelope of a control message, filled in through protobuf's own classes."""
    envelope = proto.Envelope()
    name = type(control).__name__.lower()
    message = getattr(envelope, name)
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        value = getattr(control, field.name)
        if field.name == "metrics":
            for key, number in value.items():
                message.metrics.add(name=key, value=number)
        elif field.name in ("plan", "trace"):
            for entry in value:
                getattr(message, field.name).add(**entry._asdict())
        elif field.name == "programs":
            message.programs.extend(value)
        else:
            setattr(message, field.name, value)
    return envelope


def part_by_protobuf(address, *, size, number, payload):
    """The envelope of a part, filled in through protobuf's own classes."""
    envelope = proto.Envelope()
    value = address.value
    part = envelope.part
    part.SetInParent()
    part.round, part.step, part.kind, part.stage = address.round, address.step, KINDS[value.kind], value.stage
    if value.client is not None:
        part.client = value.client
    if value.micro_batch is not None:
        part.micro_batch = value.micro_batch
    part.chunk, part.size, part.number, part.payload = value.chunk, size, number, payload
    return envelope


@given(CONTROL)
def test_control_messages_equal_protobuf(control):
    encoded = encode_control(control)
    assert encoded == control_by_protobuf(control).SerializeToString()
    assert decode(encoded) == control


@given(ADDRESS, st.binary(max_size=50), st.integers(0, 3))
def test_parts_equal_protobuf(address, payload, splits):
    pieces = [payload[:splits], memoryview(payload)[splits:]]
    (encoded,) = encode_parts(address, pieces)
    assert encoded == part_by_protobuf(address, size=len(payload), number=0, payload=payload).SerializeToString()
    assert len(encoded) == bundle_size(address, len(payload))
    assert decode(encoded) == Part(address, len(payload), 0, memoryview(payload))


@given(ADDRESS, UINT64, UINT32, st.binary(max_size=50))
def test_any_part_of_protobuf_is_read(address, size, number, payload):
    encoded = part_by_protobuf(address, size=size, number=number, payload=payload).SerializeToString()
    assert decode(encoded) == Part(address, size, number, memoryview(payload))


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (PART_SIZE, 1),
        (PART_SIZE + SLACK, 1),
        (PART_SIZE + SLACK + 1, 2),
        (2 * PART_SIZE + 1, 2),
        (3 * PART_SIZE - 1, 3),
    ],
)
def test_a_large_bundle_is_cut_where_other_languages_expect(size, count):
    address = Address(1, 2, Value(Kind.GRAD, 1, 0, 3))
    payload = bytes(range(251)) * (size // 251 + 1)
    payload = payload[:size]
    encoded = list(encode_parts(address, [payload[:7], b"", payload[7 : PART_SIZE + 1], payload[PART_SIZE + 1 :]]))
    assert len(encoded) == count
    for number, envelope in enumerate(encoded):
        end = (number + 1) * PART_SIZE if number < count - 1 else size
        piece = payload[number * PART_SIZE : end]
        assert envelope == part_by_protobuf(address, size=size, number=number, payload=piece).SerializeToString()
    assert sum(map(len, encoded)) == bundle_size(address, size)
    assert b"".join(decode(envelope).payload for envelope in encoded) == payload


def test_nan_metrics_travel():
    report = decode(encode_control(Report(1, 2, {"loss": math.nan, "minus": -0.0})))
    assert math.isnan(report.metrics["loss"])
    assert math.copysign(1, report.metrics["minus"]) == -1


def test_a_newer_hello_is_understood_and_refused_by_version():
    hello = Hello(PROTOCOL + 1, "phone", "{}", 5, "splitfl 9.0")
    encoded = encode_control(hello)
    extended = length_header(1, len(encoded) - 2 + 5) + encoded[2:] + bytes_field(99, b"xy")
    assert decode(extended) == hello
    refusal = version_refusal(decode(extended))
    assert refusal.code == "version"
    assert f"protocol {PROTOCOL + 1}, this server speaks {PROTOCOL}" in refusal.message
    assert version_refusal(Hello(PROTOCOL, "phone", "{}", 5, "splitfl")) is None


def test_fields_beside_the_content_are_skipped():
    encoded = encode_control(Finish("done"))
    assert decode(uint_field(50, 7) + encoded + bytes_field(51, b"new")) == Finish("done")


HOSTILE = {
    "nothing": b"",
    "an unknown content": bytes_field(8, b"x"),
    "two contents": encode_control(Finish("a")) + encode_control(Refuse("b", "c")),
    "a content that is a number": uint_field(1, 5),
    "a kind that does not travel": length_header(7, 2) + uint_field(3, 5),
    "no kind": length_header(7, 2) + uint_field(1, 1),
    "a round of 33 bits": length_header(7, 8) + uint_field(3, 1) + uint_field(1, 2**32),
    "a protocol of 33 bits": length_header(1, 6) + uint_field(1, 2**32),
    "a name that is no UTF-8": length_header(6, 3) + bytes_field(1, b"\xff"),
    "a string that is a number": length_header(6, 2) + uint_field(1, 1),
    "a step that is a number": length_header(3, 2) + uint_field(6, 1),
    "a metric that is a string": length_header(4, 5) + length_header(3, 3) + bytes_field(2, b"x"),
    "a truncated length": b"\x3a\xff\xff\xff\xff\x0f",
    "a pickle": pickle.dumps(Finish("x")),
}


@pytest.mark.parametrize("hostile", list(HOSTILE))
def test_hostile_envelopes_are_refused(hostile):
    tracemalloc.start()
    with pytest.raises(EnvelopeError):
        decode(HOSTILE[hostile])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_envelope_errors(noise):
    with contextlib.suppress(EnvelopeError):
        decode(noise)


@given(CONTROL, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4))
def test_mutated_envelopes_raise_nothing_but_envelope_errors(control, changes):
    mutated = bytearray(encode_control(control))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    with contextlib.suppress(EnvelopeError):
        decode(mutated)


@given(ADDRESS, st.binary(max_size=20), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4))
def test_mutated_parts_raise_nothing_but_envelope_errors(address, payload, changes):
    mutated = bytearray(next(iter(encode_parts(address, [payload]))))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    with contextlib.suppress(EnvelopeError):
        decode(mutated)

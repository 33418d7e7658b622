"""The wire contract: golden vectors hold for protobuf and for us, and the generated classes are up to date."""

import filecmp
import importlib.util
import json
import math
import struct
from pathlib import Path

import pytest
import torch
from google.protobuf import json_format

from splitfl.codecs import FORMATS, frame
from splitfl.codecs.spec import DTYPE_NUMBERS
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import proto
from splitfl.transport.envelope import Part, decode, encode_control
from splitfl.transport.messages import Address, Begin, Finish, Hello, Refuse, Report, Step, Traced, Welcome
from splitfl.transport.part import KINDS

PROTO = Path(__file__).resolve().parents[2] / "proto"
CASES = {case["name"]: case for case in json.loads((PROTO / "golden" / "cases.json").read_text())}

CONTROLS = {
    "hello": Hello(1, "phone-1", '{"model":"00ff"}', 600, "splitfl 0.1.0", "secret"),
    "hello_linked": Hello(1, "bank", "{}", 1, "splitfl 0.1.0", links="AAECAwQFBgcICQoLDA0ODw=="),
    "welcome_linked": Welcome("a1b2c3d4", 1, 2, links="AAECAwQFBgcICQoLDA0ODw=="),
    "welcome": Welcome("a1b2c3d4", 0, 3, '{"seed": 7}'),
    "begin": Begin(
        2,
        2**63 - 1,
        "0L1",
        ("0F1.0 0S1.0(act:server) 0R1.0(grad:server) 0B1.0 0U1", ""),
        "0S1(params:server)",
        (Step(0, 32), Step(1, 0)),
    ),
    "refuse": Refuse("version", "client 'x' speaks protocol 2, this server speaks 1"),
    "finish": Finish("Übung beendet"),
    "finish_empty": Finish(""),
}
PARTS = {
    "part_activation": Part(Address(1, 300, Value(Kind.ACT, 0, 0, 0)), 3, 0, memoryview(b"abc")),
    "part_second": Part(Address(1, 0, Value(Kind.GRAD, 1, 2, 3, 1)), 1048578, 1, memoryview(b"\0\xff")),
    "part_shared_weights": Part(Address(7, 0, Value(Kind.PARAMS, 1)), 0, 0, memoryview(b"")),
    "part_average": Part(Address(7, 0, Value(Kind.AVG, 0, 2**32 - 1)), 1, 0, memoryview(b"\1")),
}
FRAMES = {
    "frame_empty": {},
    "frame_raw": {
        "0.weight": torch.tensor([[1.0, -2.0], [0.5, math.inf]]),
        "0.num_batches_tracked": torch.tensor(-3),
        "": torch.tensor([True, False, True]),
        "leer": torch.empty(0, 3, dtype=torch.bfloat16),
        "target:": torch.tensor([3, 300]),
    },
    "frame_codecs": {
        "wide": torch.tensor([1.5, -0.25], dtype=torch.float64),
        "half": torch.tensor([1.0, -2.0]),
        "small": torch.tensor([2.0**-20, -(2.0**-20)]),
        "flat": torch.tensor([-1.0, 0.0, 126.5]),
        "channels": torch.tensor([[[0.0, 0.5], [-0.5, -0.25]]]),
    },
    "frame_parts": {
        "nibbles": torch.tensor([-1.0, 6.5, 0.0]),
        "eighths": torch.tensor([1.0, -13.0]),
        "bits": torch.tensor([[1.0, 0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 3.0]]),
        "numbers": torch.tensor([0.0] * 38 + [-7.0, 0.0]),
        "walk": torch.tensor([0.0, 2.0, 0.0, 3.0, 1.0]),
        "folded": torch.full((16,), 0.5),
    },
    "frame_columns": {
        "bits": torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]]),
        "numbers": torch.tensor([[0.0] * 38 + [-7.0, 0.0], [0.0] * 38 + [0.5, 0.0]]).reshape(2, 2, 20),
        "levels": torch.tensor([[0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 1.0, 126.5]]),
    },
}


def golden(name):
    return (PROTO / "golden" / f"{name}.bin").read_bytes()


def test_every_case_has_bytes_and_is_checked():
    assert {path.stem for path in (PROTO / "golden").glob("*.bin")} == set(CASES)
    assert {*CONTROLS, *PARTS, *FRAMES, "report"} == set(CASES)


@pytest.mark.parametrize("name", list(CASES))
def test_protobuf_agrees(name):
    case = CASES[name]
    message = json_format.ParseDict(case["content"], getattr(proto, case["message"])())
    assert message.SerializeToString() == golden(name)
    assert getattr(proto, case["message"]).FromString(golden(name)).SerializeToString() == golden(name)


@pytest.mark.parametrize("name", list(CONTROLS))
def test_control_messages(name):
    assert encode_control(CONTROLS[name]) == golden(name)
    assert decode(golden(name)) == CONTROLS[name]


def test_report():
    trace = (Traced("0F1.0", 0.0, 0.125, 0), Traced("0S1.0(act:server)", 0.125, 0.5, 1048576))
    nan = struct.unpack("<d", bytes.fromhex("000000000000f87f"))[0]
    report = Report(2, 600, {"train_loss": 0.25, "zero": 0.0, "minus_zero": -0.0, "diverged": nan}, trace)
    assert encode_control(report) == golden("report")
    decoded = decode(golden("report"))
    assert decoded.trace == trace
    assert list(decoded.metrics) == list(report.metrics)


@pytest.mark.parametrize("name", list(PARTS))
def test_parts(name):
    assert decode(golden(name)) == PARTS[name]


@pytest.mark.parametrize("name", list(FRAMES))
def test_frames(name):
    decoded = frame.decode(golden(name))
    assert list(decoded) == list(FRAMES[name])
    for key, tensor in FRAMES[name].items():
        assert decoded[key].dtype == tensor.dtype
        assert torch.equal(decoded[key], tensor)


@pytest.mark.parametrize("name", ["frame_empty", "frame_raw"])
def test_raw_frames_are_written_so(name):
    assert b"".join(frame.encode(FRAMES[name])) == golden(name)


def test_numbers_of_the_contract_are_ours():
    pool = proto.Frame.DESCRIPTOR.file.enum_types_by_name
    names = {f"DTYPE_{str(dtype).removeprefix('torch.').upper()}": number for dtype, number in DTYPE_NUMBERS.items()}
    assert names | {"DTYPE_UNSPECIFIED": 0} == {value.name: value.number for value in pool["DType"].values}
    codecs = {f"CODEC_{name.upper()}": each.number for name, each in FORMATS.items()}
    assert codecs | {"CODEC_RAW": 0} == {value.name: value.number for value in pool["Codec"].values}
    kinds = {f"KIND_{kind.name}": number for kind, number in KINDS.items()}
    values = proto.Envelope.DESCRIPTOR.file.enum_types_by_name["Kind"].values
    assert kinds | {"KIND_UNSPECIFIED": 0} == {value.name: value.number for value in values}


def test_generated_classes_are_up_to_date(tmp_path):
    spec = importlib.util.spec_from_file_location("generate", PROTO / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.generate_classes(tmp_path)
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*")]
    assert len(written) == 4
    matches, different, errors = filecmp.cmpfiles(tmp_path, generate.GENERATED, map(str, written), shallow=False)
    assert (len(matches), different, errors) == (4, [], [])

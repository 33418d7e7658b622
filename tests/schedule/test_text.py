from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.schedule import (
    Instruction,
    Kind,
    Op,
    ScheduleError,
    Topology,
    check,
    gantt,
    lower,
    one_f_one_b,
    parse,
    parse_program,
    program_text,
    text,
)

NUMBER = st.integers(0, 10**9 - 1)
NAME = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,63}", fullmatch=True)
PER_MICRO = st.sampled_from([Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.STORE])
MOVES = st.sampled_from([Op.SEND, Op.RECV])
NOTHING = st.none()
FIELDS = st.one_of(
    st.tuples(PER_MICRO, NUMBER, NUMBER, NUMBER, NUMBER),
    st.tuples(st.just(Op.STEP), NUMBER, NOTHING | NUMBER),
    st.tuples(st.just(Op.AGGREGATE), NUMBER),
    st.tuples(st.just(Op.LOAD), NUMBER, NUMBER),
    st.tuples(MOVES, NUMBER, NUMBER, NUMBER, NUMBER, st.sampled_from([Kind.ACT, Kind.GRAD]), NAME),
    st.tuples(MOVES, NUMBER, NUMBER, NOTHING, st.just(0), st.sampled_from([Kind.PARAMS, Kind.AVG]), NAME),
)
INSTRUCTIONS = FIELDS.map(lambda fields: Instruction(*fields))
PROGRAMS = st.lists(INSTRUCTIONS, max_size=40).map(tuple)


@given(st.dictionaries(NAME, PROGRAMS, max_size=4))
def test_parse_is_the_inverse_of_text(schedule):
    written = text(schedule)
    assert parse(written) == schedule
    assert list(parse(written)) == list(schedule)
    assert all(len(line) <= 110 or len(line.split()) <= 2 for line in written.splitlines())


@given(PROGRAMS)
def test_parse_program_is_the_inverse_of_program_text(program):
    assert parse_program(program_text(program)) == program


@given(st.text(alphabet="0123456789FBIWUSRKAL.()actgrd:-# \n\u0663", max_size=60))
def test_any_text_is_read_or_refused(source):
    try:
        schedule = parse(source)
    except ScheduleError:
        return
    assert parse(text(schedule)) == schedule


def test_comments_blank_lines_and_wrapping():
    source = "# a pipeline\n\nc0:  # the device\n  0F0.0   0S0.0(act:server)\n\n  0U0 # done\nserver:\n"
    assert parse(source) == {
        "c0": (
            Instruction(Op.FORWARD, 0, 0, 0),
            Instruction(Op.SEND, 0, 0, 0, kind=Kind.ACT, peer="server"),
            Instruction(Op.STEP, 0, 0),
        ),
        "server": (),
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("0F0.0", r"line 1: '0F0.0': expected an actor's name and a colon"),
        ("c0: 0F0.0\nc0: 0B0.0", r"line 2: 'c0' has a program already"),
        ("c0:\n 0X0.0", r"line 2: '0X0.0' is no instruction: expected a stage, then one of F B I W U S R K A L"),
        ("c0: F0.0", r"line 1: 'F0.0' is no instruction"),
        ("c0: 0F0", r"line 1: '0F0': expected stage F client.micro-batch, such as 0F1.2"),
        ("c0: 0L.0", r"line 1: '0L.0': expected stage L"),
        ("c0: 0U0.1", r"line 1: '0U0.1': expected stage U client, such as 0U1"),
        ("c0: 0A1", r"line 1: '0A1': expected stage A, such as 0A"),
        ("c0: 0L", r"line 1: '0L': expected stage L client"),
        ("c0: 0S0.0", r"line 1: '0S0.0': expected a value and an actor, such as 0S1.2\(act:server\)"),
        ("c0: 0S0.0(stash:server)", r"what moves is one of act, grad, params, avg"),
        ("c0: 0S0.0(weights:server)", r"is no instruction: expected a value and an actor, such as 0S1.2\(act:server\)"),
        ("c0: 0S0.0(params:server)", r"expected a value and an actor, such as"),
        ("c0: 0F0.0(act:server)", r"expected stage F"),
        ("c0: 0F0.0.0.0", r"is no instruction"),
        ("c0: 9999999999F0.0", r"is no instruction"),
        ("c0: \u0663F0.0", r"is no instruction"),
        ("c0: " + "9" * 500, r"'9{37}\.\.\.' is no instruction"),
    ],
)
def test_errors_name_line_token_and_what_is_accepted(source, message):
    with pytest.raises(ScheduleError, match=message):
        parse(source)


def test_a_program_from_the_network_is_bounded_and_strict():
    assert parse_program("") == ()
    assert len(parse_program("0U0 0U1", limit=2)) == 2
    with pytest.raises(ScheduleError, match="longer than 2 instructions"):
        parse_program("0U0 0U1 0U2", limit=2)
    with pytest.raises(ScheduleError, match="longer than 2 instructions"):
        parse_program("0" * 1000, limit=2)
    for source in ("0U0  0U1", "0U0\n0U1", "c0: 0U0", "0U0 # x", " 0U0"):
        with pytest.raises(ScheduleError, match=r"instruction \d+: '.*' is no instruction"):
            parse_program(source)


@pytest.mark.parametrize(
    "instruction",
    [
        Instruction(Op.FORWARD, 0),
        Instruction(Op.LOAD, 0, 1, None, 2),
        Instruction(Op.SEND, 0, 0, 0, kind=Kind.STASH, peer="server"),
        Instruction(Op.SEND, 0, 0, 0, kind=Kind.ACT, peer="a b"),
        Instruction(Op.FORWARD, -1, 0, 0),
    ],
)
def test_what_would_not_parse_back_is_not_written(instruction):
    with pytest.raises(ScheduleError):
        text({"c0": (instruction,)})


def test_an_actor_whose_name_has_no_text_form_is_refused():
    with pytest.raises(ScheduleError, match="the actor's name 'a b' has no text form"):
        text({"a b": ()})


def test_gantt_of_1f1b():
    topology = Topology(clients=(0,), placement=("client", "a", "b"), micro_batches=4)
    seen = check(lower(one_f_one_b(topology), topology), topology)
    assert gantt(seen) == (
        "clock  0  1  2  3  4  5  6  7  8  9  10 11 12\n"
        "c0     F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 U\n"
        "a      .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 U  .\n"
        "b      .  .  F0 B0 F1 B1 F2 B2 F3 B3 U  .  .\n"
    )
    assert max(map(len, gantt(seen, columns=30).splitlines())) <= 30
    assert gantt(seen, columns=30).count("clock") == 2


def test_gantt_shows_lanes_and_stages_where_there_are_several():
    tail = frozenset({2})
    topology = Topology(clients=(0, 1), placement=("client", "server", "server"), shared=tail, joint=tail)
    assert gantt(check(lower(one_f_one_b(topology), topology), topology)) == (
        "clock     0   1   2   3   4   5   6   7   8\n"
        "c0        F0  .   .   .   .   B0  U   .   .\n"
        "c1        F0  .   .   .   .   .   .   B0  U\n"
        "server:0  .   1F0 2F0 2B0 1B0 1U  .   .   .\n"
        "server:1  .   1F0 .   .   2F0 2B0 1B0 1U  .\n"
        "server:*  .   .   .   .   .   .   2U  .   .\n"
    )

"""Histories go to JSON and back, and anything else is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.errors import SplitflError
from splitfl.planning import Event
from splitfl.run.record import Failure, History, RoundRecord, Span, spans
from splitfl.schedule import Instruction, Op

NAMES = st.text(max_size=8)
SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 2**62)
LOSSES = st.none() | st.floats(allow_nan=False)
RECORDS = st.builds(
    RoundRecord,
    round=st.integers(1, 10**6),
    seconds=st.floats(0, 1e9),
    clock=st.sampled_from(["real", "virtual"]),
    accuracy=st.none() | SHARES,
    loss=LOSSES,
    train_loss=LOSSES,
    bytes_up=COUNTS,
    bytes_down=COUNTS,
    idle=st.dictionaries(NAMES, SHARES, max_size=3),
    participants=st.lists(NAMES, max_size=3).map(tuple),
    failures=st.lists(st.builds(Failure, NAMES, NAMES), max_size=2).map(tuple),
)
SPANS = st.lists(st.builds(Span, NAMES, NAMES, SHARES, SHARES, COUNTS), max_size=3).map(tuple)
HISTORIES = st.builds(
    History,
    title=NAMES,
    method=NAMES,
    clients=st.lists(NAMES, max_size=3).map(tuple),
    settings=st.dictionaries(
        NAMES, st.none() | st.booleans() | COUNTS | NAMES | st.lists(COUNTS, max_size=2), max_size=3
    ),
    rounds=st.lists(RECORDS, max_size=3).map(tuple),
    measured=SPANS,
    predicted=SPANS,
)


@given(HISTORIES)
def test_a_history_returns_from_json(history):
    assert History.from_json(history.to_json()) == history


def test_a_real_history_returns_from_json(runs):
    for history in runs:
        assert History.from_json(history.to_json()) == history


def test_a_diverged_loss_is_valid_json_and_returns(runs):
    history = replace(runs[0], rounds=(replace(runs[0].rounds[0], loss=math.nan, train_loss=math.inf),))
    json.loads(history.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = History.from_json(history.to_json())
    assert math.isnan(again.rounds[0].loss)
    assert again.rounds[0].train_loss == math.inf


def test_a_round_is_one_line_of_json(runs):
    record = runs[0].rounds[0]
    text = record.to_json()
    assert "\n" not in text
    assert json.loads(text)["bytes_up"] == record.bytes_up


WRONG = [
    ("", "history: Invalid JSON"),
    ("[]", "history: "),
    ('{"method": "pipar"}', "history: title: "),
    ('{"title": "a", "method": "b", "color": 1}', "history: color: "),
    ('{"title": "a", "method": "b", "rounds": [{"round": 0, "seconds": 1}]}', "history: rounds.0.round: "),
    ('{"title": "a", "method": "b", "rounds": [{"round": 1, "seconds": -1}]}', "history: rounds.0.seconds: "),
    ('{"title": "a", "method": "b", "rounds": [{"round": 1, "seconds": 1, "idle": {"c0": 2}}]}', "rounds.0.idle.c0: "),
    ('{"title": "a", "method": "b", "rounds": [{"round": 1, "seconds": 1, "clock": "sun"}]}', "rounds.0.clock: "),
    ('{"title": "a", "method": "b", "measured": [["c0", "0F0.0"]]}', "history: measured.0."),
    ('{"title": "a", "method": "b", "measured": [["c0", "0F0.0", 0, "NaN"]]}', "history: measured.0."),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_json_is_refused_naming_the_field(text, message):
    with pytest.raises(SplitflError) as caught:
        History.from_json(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_spans_begin_at_zero():
    events = [
        Event("server", Instruction(Op.FORWARD, 1, 0, 0), 101.5, 102.0),
        Event("c0", Instruction(Op.FORWARD, 0, 0, 0), 100.0, 101.0, 7),
    ]
    assert spans(events) == (Span("server", "1F0.0", 1.5, 2.0, 0), Span("c0", "0F0.0", 0.0, 1.0, 7))
    assert spans([]) == ()

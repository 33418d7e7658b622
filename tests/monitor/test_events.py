"""Events: a name and fields as a log record, one line whatever the values hold."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.events import LEVELS, Event, Name, event, one_line, plain

LOGGER = logging.getLogger("splitfl.test")


def test_an_event_is_a_record_with_name_and_fields(caplog):
    with caplog.at_level(logging.INFO, logger="splitfl"):
        event(LOGGER, "client_enrolled", client="pi", samples=812)
        event(LOGGER, "client_dropped", client="pi", reason="gone for good")
    enrolled, dropped = caplog.records
    assert enrolled.msg == Event("client_enrolled", {"client": "pi", "samples": 812})
    assert enrolled.getMessage() == "client_enrolled client=pi samples=812"
    assert dropped.getMessage() == 'client_dropped client=pi reason="gone for good"'
    assert (enrolled.levelname, dropped.levelname) == ("INFO", "WARNING")
    assert enrolled.funcName == "test_an_event_is_a_record_with_name_and_fields"


def test_fields_may_have_the_names_that_logging_keeps_for_itself(caplog):
    with caplog.at_level(logging.INFO, logger="splitfl"):
        event(LOGGER, "draining", name="x", message="y", args=(1,), level=3, logger="z")
    assert caplog.records[0].getMessage() == 'draining name=x message=y args="(1,)" level=3 logger=z'


def test_an_event_below_the_level_is_not_even_made(caplog):
    class Costly:
        def __str__(self):
            raise AssertionError("asked for its text")

    with caplog.at_level(logging.ERROR, logger="splitfl"):
        event(LOGGER, "client_enrolled", client=Costly())
    assert caplog.records == []


def test_levels_are_those_of_events_that_there_are():
    assert set(LEVELS) <= set(Name.__args__)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("pi-kitchen", "pi-kitchen"),
        ("10.0.0.7:4711", "10.0.0.7:4711"),
        (0.1234567891, "0.123457"),
        (7, "7"),
        (None, "None"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "no"', r'"say \"no\""'),
        ("x level=ERROR", '"x level=ERROR"'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[31m", r'"\u001b[31m"'),
        ("\x9b31m", r'"\x9b31m"'),
        ("a\u2028b\u202ec", r'"a\u2028b\u202ec"'),
    ],
)
def test_values_are_one_word_or_quoted(value, text):
    assert plain(value) == text


@given(st.text())
def test_no_text_breaks_a_line_or_moves_a_cursor(text):
    assert one_line(text).isprintable()
    assert plain(text).isprintable()
    assert len(one_line(text).splitlines()) <= 1

"""Logs as text and as JSON lines; what clients send cannot forge a line, and secrets do not show."""

import datetime
import io
import json
import logging
import math
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.errors import SplitflError
from splitfl.events import event
from splitfl.monitor import configure_logs

LOGGER = logging.getLogger("splitfl.run.server")

HOSTILE = "c1\n2026-01-01T00:00:00Z INFO server: client_enrolled client=root\r\x1b[2J\x9b1m\u2028\u202e\x7f\x00"


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_has_a_line_for_each_record(written):
    stream = written()
    event(LOGGER, "client_enrolled", client="pi-kitchen", samples=812)
    LOGGER.warning("%d of %s", 1, "two", extra={"peer": "10.0.0.1:5"})
    LOGGER.debug("not shown")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO server: client_enrolled client=pi-kitchen samples=812", first
    )
    assert second.endswith("Z WARNING server: 1 of two peer=10.0.0.1:5")


def test_json_has_an_object_for_each_record(written):
    stream = written("debug", "json")
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    event(LOGGER, "client_dropped", client="pi", reason="it said:\n\tno", share=0.5, steps=(1, 2), more={"a": None})
    LOGGER.debug("%s", "\u00fc", extra={"peer": "10.0.0.1:5"})
    first, second = lines(stream)
    moment = datetime.datetime.fromisoformat(first.pop("time"))
    assert moment.utcoffset() == datetime.timedelta(0)
    assert before <= moment <= before + datetime.timedelta(seconds=60)
    assert first == {
        "level": "warning",
        "logger": "splitfl.run.server",
        "message": "client_dropped",
        "client": "pi",
        "reason": "it said:\n\tno",
        "share": 0.5,
        "steps": [1, 2],
        "more": {"a": None},
    }
    assert (second["message"], second["peer"], second["level"]) == ("\u00fc", "10.0.0.1:5", "debug")


def test_fields_do_not_take_the_place_of_what_every_line_has(written):
    stream = written("info", "json")
    event(LOGGER, "draining", time="never", level="fatal", logger="x", message="y", exception="z")
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["message"]) == ("info", "splitfl.run.server", "draining")
    assert [line[f"{name}_"] for name in ("time", "level", "logger", "message", "exception")] == [
        "never", "fatal", "x", "y", "z",
    ]  # fmt: skip


def test_numbers_that_are_none_stay_json(written):
    stream = written("info", "json")
    event(LOGGER, "round_finished", loss=math.nan, worst=[math.inf], at={"x": -math.inf})

    def refuse(name):
        raise AssertionError(name)

    line = json.loads(stream.getvalue(), parse_constant=refuse)
    assert (line["loss"], line["worst"], line["at"]) == ("nan", ["inf"], {"x": "-inf"})


def test_an_exception_is_a_field_or_indented_lines(written):
    def fail():
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            LOGGER.exception("a session failed")

    stream = written("info", "json")
    fail()
    (line,) = lines(stream)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert "ValueError: c1\n2026" in line["exception"]
    stream = written("info", "text")
    fail()
    head, *trace = stream.getvalue().splitlines()
    assert head.endswith("ERROR server: a session failed")
    assert len(trace) > 4
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_hostile_name_stays_on_its_line(written, form):
    stream = written("info", form)
    event(LOGGER, "client_enrolled", client=HOSTILE, samples=1)
    LOGGER.warning("client %s is late", HOSTILE)
    LOGGER.warning("late", extra={"client": HOSTILE, HOSTILE: 1})
    text = stream.getvalue()
    assert text.count("\n") == len(text.splitlines()) == 3
    assert text.replace("\n", "").isprintable()
    assert "\x7f" not in text
    if form == "json":
        first, second, third = lines(stream)
        assert first["client"] == third["client"] == HOSTILE
        assert second["message"] == f"client {HOSTILE} is late"


@given(st.text(), st.sampled_from(["text", "json"]))
def test_any_name_stays_on_its_line(name, form):
    stream = io.StringIO()
    handler = configure_logs("info", form, stream=stream)
    try:
        event(LOGGER, "client_enrolled", client=name)
        LOGGER.info("%s", name)
    finally:
        handler.close()
    text = stream.getvalue()
    assert text.count("\n") == len(text.splitlines()) == 2
    assert text.replace("\n", "").isprintable()
    if form == "json":
        assert [lines(stream)[0]["client"], lines(stream)[1]["message"]] == [name, name]


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_do_not_show(written, form):
    stream = written("info", form, secrets=["s3cr3t-one"])
    handler = next(each for each in logging.getLogger("splitfl").handlers if hasattr(each, "conceal"))
    handler.conceal('quote"newline\nback\\slash')
    fields = {"token": "AAAA", "client_token": "BBBB", "Private-Key": "CCCC", "password": 1234, "secret": ["DDDD"]}
    event(LOGGER, "client_refused", **fields, hello={"token": "EEEE", "said": "s3cr3t-one!"}, list=["s3cr3t-one"])
    LOGGER.error("got %s and %s", "s3cr3t-one", 'quote"newline\nback\\slash', extra={"api_key": "FFFF"})
    try:
        raise SplitflError("wrong: s3cr3t-one")
    except SplitflError:
        LOGGER.exception("failed")
    text = stream.getvalue()
    assert not re.search("AAAA|BBBB|CCCC|DDDD|EEEE|FFFF|1234|s3cr3t|slash", text)
    assert "got *** and ***" in text
    assert "wrong: ***" in text
    assert "***!" in text


def test_what_only_sounds_like_a_secret_is_shown(written):
    stream = written("info", "json")
    event(LOGGER, "draining", tokens=512, monkey="george", keyboard="qwertz")
    (line,) = lines(stream)
    assert (line["tokens"], line["monkey"], line["keyboard"]) == (512, "george", "qwertz")


def test_an_empty_secret_hides_nothing(written):
    stream = written("info", "json", secrets=[""])
    LOGGER.info("as it is")
    assert lines(stream)[0]["message"] == "as it is"


def test_a_secret_that_holds_another_vanishes_whole(written):
    stream = written("info", "json", secrets=["abcd", "abcdefgh"])
    LOGGER.info("abcdefgh abcd")
    assert lines(stream)[0]["message"] == "*** ***"


def test_endless_texts_are_cut(written):
    stream = written("info", "json")
    event(LOGGER, "client_refused", reason="x" * 1_000_000)
    assert len(stream.getvalue()) < 11_000
    assert lines(stream)[0]["reason"].endswith("x... (990000 more characters)")


def test_setting_up_again_replaces_the_earlier(written):
    first = written("debug", "text")
    second = written("warning", "json")
    LOGGER.info("too quiet")
    LOGGER.warning("loud")
    assert first.getvalue() == ""
    assert [line["message"] for line in lines(second)] == ["loud"]


def test_a_closed_handler_leaves_logging_as_it_was():
    root = logging.getLogger("splitfl")
    before = (list(root.handlers), root.level)
    configure_logs("error", "json", stream=io.StringIO()).close()
    assert (list(root.handlers), root.level) == before


def test_logs_go_to_stderr(capsys):
    handler = configure_logs()
    try:
        LOGGER.info("here")
    finally:
        handler.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("INFO server: here\n")
    assert not sys.stderr.closed


def test_only_our_own_loggers_are_written(written):
    stream = written("debug", "text")
    logging.getLogger("elsewhere").error("not ours")
    assert stream.getvalue() == ""


def test_unknown_levels_and_formats_are_refused():
    with pytest.raises(SplitflError, match=r"log level 'loud': expected debug, info, warning, error"):
        configure_logs("loud")
    with pytest.raises(SplitflError, match=r"log format 'xml': expected text or json"):
        configure_logs("info", "xml")

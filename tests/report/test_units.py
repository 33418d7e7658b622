"""Numbers as people read them, at the edges where units change."""

from __future__ import annotations

import pytest

from splitfl.report.units import as_bytes, as_number, as_percent, as_seconds, byte_unit, second_unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_250_000, "1.25 MB"),
        (999_600, "1000 kB"),
        (3.2e9, "3.2 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_bytes(count, text):
    assert as_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0852, "85.2 ms"),
        (1, "1 s"),
        (2.414, "2.41 s"),
        (59.99, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
    ],
)
def test_seconds(seconds, text):
    assert as_seconds(seconds) == text


def test_shares_and_numbers():
    assert as_percent(0.9716) == "97.2 %"
    assert as_number(0.12345) == "0.123"
    assert as_percent(None) == as_number(None) == "\N{EN DASH}"


def test_the_greatest_value_chooses_the_unit_of_an_axis():
    assert byte_unit([10, 5e6]).sign == "MB"
    assert byte_unit([]).sign == "B"
    assert second_unit([0.4]).sign == "ms"
    assert second_unit([0.4, 2]).sign == "s"

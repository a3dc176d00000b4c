# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
    spell_bytes,
)

SIZES = st.integers(min_value=0, max_value=10**18)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1_000", 1000),
        ("64MiB", 64 * 2**20),
        ("64 MiB", 64 * 2**20),
        (" 1.5GB ", 1_500_000_000),
        ("0.1GB", 100_000_000),
        ("1.kB", 1000),
        (".5KiB", 512),
        ("1e3kB", 1_000_000),
        ("2KB", 2000),
        ("3TiB", 3 * 2**40),
    ],
)
def test_parse_bytes_good_text_is_exact(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["64M", "64m", "64mb", "1K", "1gib", "2T"])
def test_parse_bytes_ambiguous_unit_is_refused_with_both_meanings(text):
    with pytest.raises(ConfigError, match="is ambiguous") as raised:
        parse_bytes(text)
    assert "powers of ten" in raised.value.hint


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "1.5", "1.5B", "1 GB/s", "1XB", "1 2", "1e999GB", "٣GB", "0x10", "1GBGB", "nan", "inf"]
)
def test_parse_bytes_bad_text_is_refused(text):
    with pytest.raises(ConfigError):
        parse_bytes(text)


@given(SIZES)
def test_prop_spelled_size_is_parsed_back(size_bytes):
    assert parse_bytes(spell_bytes(size_bytes)) == size_bytes


@given(SIZES, st.booleans())
def test_prop_formatted_size_is_near(size_bytes, binary):
    assert parse_bytes_near(format_bytes(size_bytes, binary=binary)) == pytest.approx(size_bytes, rel=0.006)


def parse_bytes_near(text: str) -> float:
    return parse_rate(text + "/s")


@given(SIZES, st.booleans())
def test_prop_formatted_size_has_one_unit_and_few_digits(size_bytes, binary):
    number, unit = format_bytes(size_bytes, binary=binary).split(" ")
    assert len(number.replace(".", "")) <= 4
    assert unit.endswith("iB") == (binary and unit != "B")


@given(st.text(max_size=12))
def test_prop_any_text_is_parsed_or_refused(text):
    for parse in (parse_bytes, parse_rate, parse_seconds):
        with contextlib.suppress(ConfigError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("250MB/s", 250e6),
        ("1.5 GiB/s", 1.5 * 2**30),
        ("100Gbit/s", 12.5e9),
        ("8 bit/s", 1.0),
        ("10MB", 10e6),
        ("1000", 1000.0),
    ],
)
def test_parse_rate_good_text_is_bytes_per_second(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("1.5 s", 1.5),
        ("2min", 120.0),
        ("1h 30min", 5400.0),
        ("1h30min", 5400.0),
        ("30", 30.0),
        ("3us", 3e-6),
        ("1d", 86400.0),
    ],
)
def test_parse_seconds_good_text_is_seconds(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "2m", "1 hour", "s", "-1s", "1h x"])
def test_parse_seconds_bad_text_is_refused(text):
    with pytest.raises(ConfigError):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_600, "1.00 MB"),
        (2_828_486, "2.83 MB"),
        (5.11e12, "5.11 TB"),
    ],
)
def test_format_bytes_known_sizes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00034, "340 µs"),
        (0.0125, "12.5 ms"),
        (1.5, "1.50 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (11520, "3 h 12 min"),
        (-1.5, "-1.50 s"),
    ],
)
def test_format_seconds_known_durations(seconds, text):
    assert format_seconds(seconds) == text


def test_format_rate_says_per_second():
    assert format_rate(250e6) == "250 MB/s"

# SPDX-License-Identifier: Apache-2.0
"""The terminal table says everything at 80 columns, at 200, and without colour."""

import io

import msgspec
import pytest
from rich.console import Console

from penstock.report.table import render


def printed(facts, width, **how):
    out = io.StringIO()
    Console(file=out, width=width, **how).print(render(facts, width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table_any_width_cuts_no_word_and_no_number(facts, width):
    text = printed(facts, width, no_color=True)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for path in facts.paths:
        assert path.label in text
        assert path.predicted.limited_by in " ".join(text.split())
    for number in ("76.6", "74 %", "$1,258", "45.7 h", "> 110 h"):
        assert number in text


def test_table_without_colour_has_no_escape(facts):
    assert "\x1b" not in printed(facts, 100, no_color=True, force_terminal=False)


def test_table_says_scale_and_age_of_prices(facts):
    text = " ".join(printed(facts, 80).split())
    assert "F = 0.125" in text
    assert "older than 12 months" in text


def test_table_differing_curves_are_called_so(facts):
    worse = msgspec.structs.replace(facts, learning=msgspec.structs.replace(facts.learning, identical=False))
    assert "DIFFER" in printed(worse, 100)

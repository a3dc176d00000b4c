# SPDX-License-Identifier: Apache-2.0
"""Tests that the terminal table shows everything at 80 columns, at 200 columns, and without colour."""

import msgspec
import pytest

from penstock.report.table import lines


def printed(facts, width):
    return "\n".join(line.text for line in lines(facts, width))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table_any_width_cuts_no_word_and_no_number(facts, width):
    text = printed(facts, width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for path in facts.paths:
        assert path.label in text
        assert path.predicted.limited_by in " ".join(text.split())
    for number in ("76.6", "74 %", "$1,258", "45.7 h", "> 110 h"):
        assert number in text


def test_table_brings_no_colour_of_its_own(facts):
    assert "\x1b" not in printed(facts, 100)


def test_table_debug_build_is_called_invalid(facts):
    assert "INVALID" not in printed(facts, 80)
    assert "INVALID as a measurement: debug build" in " ".join(
        printed(msgspec.structs.replace(facts, invalid="debug build"), 80).split()
    )


def test_table_says_scale_and_age_of_prices(facts):
    text = " ".join(printed(facts, 80).split())
    assert "F = 0.125" in text
    assert "older than 12 months" in text


def test_table_differing_curves_are_called_so(facts):
    worse = msgspec.structs.replace(facts, learning=msgspec.structs.replace(facts.learning, identical=False))
    assert "DIFFER" in printed(worse, 100)


def test_table_names_the_reason_where_the_rehearsal_missed_the_model(facts):
    assert "more than 20 %" not in printed(facts, 80)
    slow = msgspec.structs.replace(
        facts.paths[1], samples_per_s=147.0, model_samples_per_s=294.0, missed="emulated steps of 435 ms took 870 ms"
    )
    text = " ".join(printed(msgspec.structs.replace(facts, paths=[facts.paths[0], slow]), 80).split())
    assert "differed from the model by more than 20 %" in text
    assert f"{slow.label}: 147 samples/s, predicted 294 (emulated steps of 435 ms took 870 ms)." in text

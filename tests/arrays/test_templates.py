# SPDX-License-Identifier: Apache-2.0
"""Tests saved templates, which store a survey's geometry and header corrections. Issue 15, point 2."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.templates import Template, load_template, save_template, template_path
from penstock.errors import ConfigError, NotFound
from tests.arrays.segy_files import grid_numbers, noise, write_segy

INLINES, CROSSLINES = grid_numbers(10, 14)


@pytest.fixture
def survey(tmp_path):
    """A file with IEEE samples under an IBM header, grid numbers at bytes 9 and 21, and trailing bytes."""
    fields = {9: ("i4", INLINES), 21: ("i4", CROSSLINES)}
    return write_segy(
        tmp_path / "a.sgy", noise((140, 60)), fields=fields, binary={3225: ("u2", 1)}, trailing=b"1234567"
    )


@pytest.fixture
def run(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda *argv: run_cli("array", *map(str, argv))


def test_template_of_the_winning_geometry_is_used_by_the_other_verbs(survey, run, tmp_path):
    overrides = ["--format", 5, "--allow-trailing", "--vertical", "depth"]
    found = run("info", survey, "--scan", *overrides, "--save-template", "north")
    assert found.code == 0, found
    assert 'as a template:\n  map = "inline=9:i4,crossline=21:i4"\n  vertical = "depth"' in found.out
    path = tmp_path / "config/penstock/templates/north.toml"
    assert str(path) in found.err
    assert path.read_text() == (
        'map = "inline=9:i4,crossline=21:i4"\nvertical = "depth"\nformat = 5\nallow-trailing = true\n'
    )
    facts = json.loads(run("info", survey, "--template", "north", "--json").out)
    assert [dim["name"] for dim in facts["dims"]] == ["inline", "crossline", "depth"]
    converted = run("convert", survey, tmp_path / "a.zarr", "--template", path)
    assert converted.code == 0, converted
    assert penstock.arrays.open(tmp_path / "a.zarr").dims == ("inline", "crossline", "depth")
    run("slice", survey, "--template", "north", "--at", "inline=101", "-o", tmp_path / "s.npy")
    assert np.array_equal(np.load(tmp_path / "s.npy"), noise((140, 60)).reshape(10, 14, 60)[1])


def test_flag_on_the_command_line_is_preferred_to_the_template(survey, run, tmp_path):
    template = tmp_path / "t.toml"
    template.write_text('map = "cdp=21:i4"\nvertical = "depth"\nformat = 5\nallow-trailing = true\n')
    found = run(
        "info", survey, "--template", template, "--vertical", "time", "--map", "inline=9,crossline=21", "--json"
    )
    assert [dim["name"] for dim in json.loads(found.out)["dims"]] == ["inline", "crossline", "time"]


def test_convert_saves_the_geometry_that_it_used(survey, run, tmp_path):
    argv = ["convert", survey, tmp_path / "a.zarr", "--format", 5, "--allow-trailing", "--dry-run"]
    found = run(*argv, "--save-template", tmp_path / "s.toml")
    assert found.code == 0, found
    assert load_template({}, str(tmp_path / "s.toml")) == Template(
        map="inline=9:i4,crossline=21:i4", vertical="time", format=5, allow_trailing=True
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("map = 3", "map must be a string"),
        ("format = true", "format must be a whole number"),
        ("map = 'inline'", "is not of the form DIMENSION=BYTE:TYPE"),
        ("vertical = 'up'", "`up` is not one of time, depth"),
        ("byte-order = 'middle'", "`middle` is not one of big, little"),
        ("colour = 1", "unknown key `colour`; the keys are map, vertical"),
        ("map = ", "is not valid TOML"),
    ],
)  # fmt: skip
def test_template_with_a_mistake_is_refused(text, words, tmp_path):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_template({}, str(tmp_path / "t.toml"))


def test_missing_template_lists_the_saved_ones_and_a_bad_name_is_refused(tmp_path):
    home = {"HOME": str(tmp_path)}
    save_template(home, "north", Template(format=5))
    assert template_path(home, "north") == tmp_path / ".config/penstock/templates/north.toml"
    with pytest.raises(NotFound, match="south") as found:
        load_template(home, "south")
    assert found.value.hint == "use one of north"
    for environment, name in ((home, "..x"), (home, "a b"), ({}, "north")):
        with pytest.raises(ConfigError, match="template"):
            template_path(environment, name)


def test_template_of_a_volume_that_is_not_segy_is_refused(survey, run, tmp_path):
    run("convert", survey, tmp_path / "a.zarr", "--format", 5, "--allow-trailing")
    found = run("info", tmp_path / "a.zarr", "--save-template", "x")
    assert found.code != 0
    assert "supported only for SEG-Y" in found.err
    assert not (tmp_path / "config").exists()


@given(
    template=st.builds(
        Template, map=st.sampled_from([None, "inline=189:i4,crossline=193:i4", "cdp=21:i4"]),
        vertical=st.sampled_from([None, "time", "depth"]), format=st.none() | st.integers(1, 16),
        byte_order=st.sampled_from([None, "big", "little"]), samples=st.none() | st.integers(1, 2**31),
        allow_trailing=st.booleans(),
    )
)  # fmt: skip
def test_prop_any_template_comes_back(template, tmp_path_factory):
    path = tmp_path_factory.mktemp("templates") / "t.toml"
    save_template({}, str(path), template)
    assert load_template({}, str(path)) == template

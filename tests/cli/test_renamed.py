# SPDX-License-Identifier: Apache-2.0
"""Tests that old flags work for one release, with one line on stderr that names the new flag."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from penstock.cli import app
from penstock.cli.parameters import settable
from penstock.cli.renamed import ALIASES, RENAMED, renamed_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_bytes(b"content")
    return folder


def test_old_flag_works_and_names_the_new_one(source, run_cli, tmp_path):
    ran = run_cli("stage", source, tmp_path / "to", "--deadline=1min", "--deflate", "gzip", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["objects"] == 1
    assert (tmp_path / "to/a.gz").exists()
    notes = [line for line in ran.err.splitlines() if line.startswith("note: --")]
    assert notes == [
        "note: --deadline is now --timeout; the next release removes --deadline",
        "note: --deflate is now --compress; the next release removes --deflate",
    ]


def test_alias_works_without_a_note(source, run_cli, tmp_path):
    ran = run_cli("stage", source, tmp_path / "to", "--inflate", "--json")
    assert (ran.code, "note: --" in ran.err) == (0, False), ran.err


def test_old_variable_and_old_setting_work(source, run_cli, tmp_path):
    ran = run_cli("stage", source, tmp_path / "to", env={"PENSTOCK_STAGE_DEFLATE": "zstd"}, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert (tmp_path / "to/a.zst").exists()
    assert "PENSTOCK_STAGE_DEFLATE is now PENSTOCK_STAGE_COMPRESS" in ran.err
    (tmp_path / "penstock.toml").write_text('[stage]\nlimit = 3\ndeadline = "1min"\n')
    ran = run_cli("stage", source, tmp_path / "again", cwd=tmp_path)
    assert (ran.code, "[stage] limit" in ran.err) == (2, True), "of the two names, only the renamed one is known"
    (tmp_path / "penstock.toml").write_text('[stage]\ndeadline = "no time"\n')
    ran = run_cli("stage", source, tmp_path / "again", cwd=tmp_path)
    assert (ran.code, "[stage] deadline = 'no time'" in ran.err) == (2, True), ran.err


def test_words_of_another_program_are_left_alone():
    verb, words = ("cluster", "run"), ["--deadline", "5s", "--", "tool", "--deadline", "9"]
    assert renamed_arguments(verb, words) == ["--timeout", "5s", "--", "tool", "--deadline", "9"]


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in [*command.list_commands(context), *getattr(command, "unlisted", ())]:
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, (*path, name))
    elif command.callback is not None:
        yield path, command


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in _commands(app.penstock)]
)
def test_function_of_each_verb_takes_the_verb_s_options(path, command):
    parameters = inspect.signature(inspect.unwrap(command.callback)).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    options = {each.name for each in command.params if each.expose_value}
    assert takes_any or options <= set(parameters)
    required = {
        name for name, each in parameters.items() if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    assert required - {"ctx"} <= options


@pytest.mark.parametrize("verb", sorted({*RENAMED, *ALIASES}), ids=" ".join)
def test_new_names_are_flags_of_the_verb_and_old_ones_are_not(verb):
    command = app.penstock
    for name in verb:
        command = command.get_command(None, name)
    names = {**RENAMED.get(verb, {}), **ALIASES.get(verb, {})}
    flags = settable(command)
    assert set(names.values()) <= set(flags)
    assert not set(names) & set(flags)


def test_stability_page_lists_every_renamed_flag():
    page = (Path(__file__).parents[2] / "docs/reference/stability.md").read_text()
    rows = [line.strip("| ").replace("`", "").split(" | ") for line in page.splitlines() if line.startswith("| `--")]
    listed = {(old[2:], new[2:], verb) for old, new, verbs in rows for verb in verbs.split(", ")}
    assert listed == {(old, new, " ".join(verb)) for verb, names in RENAMED.items() for old, new in names.items()}

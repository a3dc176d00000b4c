# SPDX-License-Identifier: Apache-2.0
"""Tests command groups: a command is imported only when called; settings, completion and suggestions cover groups."""

from __future__ import annotations

import sys

import click
import pytest
from click.shell_completion import ShellComplete

from penstock.cli import app
from penstock.cli.group import LazyGroup
from penstock.cli.parameters import default_map
from penstock.config import Config, Layer
from penstock.errors import ConfigError


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group of two commands on disk; importing `broken` raises an error."""
    package = tmp_path / "lazy_verbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "quick_look.py").write_text(
        "import click\n"
        "@click.command('quick-look')\n"
        "@click.option('--block-size', type=int, default=4)\n"
        "def command(block_size):\n"
        "    click.echo(f'block {block_size}')\n"
    )
    (package / "broken.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyGroup(
        "lazy", package="lazy_verbs", verbs={"quick-look": "Look quickly.", "broken": "Cannot be imported."}
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_verbs"]:
        del sys.modules[name]


def test_group_help_imports_no_verb(group):
    text = click.Context(group, info_name="lazy").get_help()
    assert "Cannot be imported." in text
    assert not [name for name in sys.modules if name.startswith("lazy_verbs")]


def test_group_completion_imports_no_verb(group):
    found = ShellComplete(group, {}, "lazy", "_LAZY").get_completions([], "b")
    assert [(item.value, item.help) for item in found] == [("broken", "Cannot be imported.")]


def test_group_unknown_verb_is_told_with_its_group(group):
    with pytest.raises(click.UsageError, match=r"unknown command `sub quick-lok`\. Did you mean `quick-look`"):
        group.main(["quick-lok"], prog_name="penstock sub", standalone_mode=False)


def test_group_settings_reach_the_verb_and_import_no_other(group):
    config = Config((Layer("a.toml", {"lazy": {"quick-look": {"block-size": 8}}}),))
    assert default_map(config, group, ("lazy",)) == {"quick-look": {"block_size": 8}}


def test_group_settings_of_a_verb_that_are_no_table_are_refused(group):
    with pytest.raises(ConfigError, match="is not a setting"):
        default_map(Config((Layer("a.toml", {"lazy": {"quick-look": 3}}),)), group, ("lazy",))


GROUPS = {
    verb: command
    for verb in app.VERBS
    if isinstance(command := app.penstock.get_command(click.Context(app.penstock), verb), LazyGroup)
}


def _each():
    return [(verb, below) for verb, group in GROUPS.items() for below in group.verbs]


@pytest.mark.parametrize(("verb", "below"), _each())
def test_sub_verb_help_says_what_it_is_for(call_cli, verb, below):
    done = call_cli(verb, below, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: penstock {verb} {below}")


@pytest.fixture(scope="module")
def all_settings(run_cli):
    return run_cli("config", "show").out


@pytest.mark.parametrize(("verb", "below"), _each())
def test_sub_verb_settings_are_shown(all_settings, verb, below):
    """`config show` covers every command in a group."""
    from penstock.cli.parameters import settable

    options = settable(GROUPS[verb].get_command(click.Context(GROUPS[verb]), below))
    assert not options or f"[{verb}.{below}]" in all_settings

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import click
import pytest

from penstock.cli.parameters import BYTES, RATE, SECONDS, default_map, settable
from penstock.config import Config, load, places
from penstock.errors import ConfigError, NotFound


@click.group("haul")
@click.option("--max-in-flight", type=int, default=8)
@click.option("--memory", type=BYTES, default="64MiB")
@click.option("--limit", type=RATE)
@click.option("--wait", type=SECONDS)
@click.option("--verify/--no-verify", default=True)
@click.argument("source")
def haul(**_settings) -> None:
    """A third-party command."""


@haul.command("far")
@click.option("--miles", type=int, default=1)
def far(miles: int) -> None:
    """A subcommand."""


def config_of(folder, text: str) -> Config:
    """Loads a settings file; it is trusted, since it is named explicitly."""
    (folder / "penstock.toml").write_text(text)
    return load({}, folder, only=folder / "penstock.toml")


def test_load_no_files_is_empty(tmp_path):
    assert load({"HOME": str(tmp_path / "home")}, tmp_path) == Config()


def test_places_without_home_is_the_folder_only(tmp_path):
    assert places({}, tmp_path) == [tmp_path / "penstock.toml"]


def test_load_two_files_the_folder_wins_key_by_key(tmp_path):
    user = tmp_path / "xdg/penstock/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[haul]\nmax-in-flight = 1\nmemory = '1GiB'\n")
    (tmp_path / "penstock.toml").write_text("[haul]\nmax-in-flight = 2\n")
    table = load({"XDG_CONFIG_HOME": str(tmp_path / "xdg")}, tmp_path).table(("haul",))
    assert table == {"max-in-flight": (2, str(tmp_path / "penstock.toml")), "memory": ("1GiB", str(user))}


def test_load_named_file_is_the_only_one(tmp_path):
    (tmp_path / "penstock.toml").write_text("[haul]\nmax-in-flight = 2\n")
    named = tmp_path / "named.toml"
    named.write_text("")
    assert load({}, tmp_path, only=named).table(("haul",)) == {}


def test_load_named_file_missing_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="is not a file"):
        load({}, tmp_path, only=tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"[haul", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_load_no_toml_names_the_file(tmp_path, content):
    (tmp_path / "penstock.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"penstock\.toml is not valid TOML"):
        load({}, tmp_path)


def test_load_huge_file_is_refused_unread(tmp_path):
    with (tmp_path / "penstock.toml").open("wb") as file:
        file.truncate(2_000_000)
    with pytest.raises(ConfigError, match=r"2,000,000 bytes, limit 1,000,000"):
        load({}, tmp_path)


def test_table_that_is_a_value_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a table"):
        config_of(tmp_path, "haul = 3\n").table(("haul",))


def test_default_map_keys_are_flags_and_sub_verbs_are_nested(tmp_path):
    config = config_of(tmp_path, "[haul]\nmax-in-flight = 3\nverify = false\n[haul.far]\nmiles = 9\n")
    assert default_map(config, haul, ("haul",)) == {"max_in_flight": 3, "verify": False, "far": {"miles": 9}}


def test_default_map_unknown_key_names_file_and_known_keys(tmp_path):
    with pytest.raises(ConfigError, match=r"penstock\.toml: \[haul\] speed is not a setting") as raised:
        default_map(config_of(tmp_path, "[haul]\nspeed = 1\n"), haul, ("haul",))
    assert "max-in-flight, memory, verify, wait" in raised.value.hint


def test_default_map_argument_is_no_setting(tmp_path):
    with pytest.raises(ConfigError, match="source is not a setting"):
        default_map(config_of(tmp_path, "[haul]\nsource = 'x'\n"), haul, ("haul",))


@pytest.mark.parametrize("line", ["max-in-flight = 'many'", "memory = '64M'", "limit = 'fast'", "wait = '2m'"])
def test_default_map_bad_value_names_file_key_and_reason(tmp_path, line):
    with pytest.raises(ConfigError, match=rf"penstock\.toml: \[haul\] {line.split(' ')[0]} = "):
        default_map(config_of(tmp_path, f"[haul]\n{line}\n"), haul, ("haul",))


def test_settable_is_long_flags_without_help():
    assert list(settable(haul)) == ["max-in-flight", "memory", "limit", "wait", "verify"]


@pytest.mark.parametrize(
    ("flags", "env", "file", "want"),
    [
        (["--memory", "1kB"], {"PENSTOCK_HAUL_MEMORY": "2kB"}, "3kB", 1000),
        ([], {"PENSTOCK_HAUL_MEMORY": "2kB"}, "3kB", 2000),
        ([], {}, "3kB", 3000),
        ([], {}, None, 64 * 2**20),
    ],
)
def test_precedence_is_flag_environment_file_default(tmp_path, monkeypatch, flags, env, file, want):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    config = config_of(tmp_path, f"[haul]\nmemory = '{file}'\n" if file else "")
    parent = click.Context(click.Group("root"), auto_envvar_prefix="PENSTOCK")
    ctx = haul.make_context(
        "haul", [*flags, "source", "far"], parent=parent, default_map=default_map(config, haul, ("haul",))
    )
    assert ctx.params["memory"] == want


def test_quantity_flag_bad_value_is_a_usage_error_with_the_hint():
    with pytest.raises(click.BadParameter, match="MB for powers of ten, MiB for powers of two"):
        haul.make_context("haul", ["--memory", "64M", "source", "far"])


@pytest.fixture
def shown(run_cli, tmp_path):
    def show(*flags: str, file: str = "", **env: str):
        (tmp_path / "penstock.toml").write_text(file)
        return run_cli("config", "show", *flags, cwd=tmp_path, env=env)

    return show


def test_config_show_json_says_origin_and_place(shown, tmp_path):
    done = shown("--json", file="[stage]\nnodes = 3\n", PENSTOCK_STAGE_NODE="1")
    document = json.loads(done.out)
    rows = {(row["verb"], row["key"]): row for row in document["settings"]}
    assert (done.code, document["schema_version"], document["files"]) == (0, 1, ["penstock.toml"]) or document[
        "files"
    ] == [str(tmp_path / "penstock.toml")]
    assert (rows["stage", "nodes"]["value"], rows["stage", "nodes"]["origin"]) == (3, "file")
    assert rows["stage", "node"]["origin"] == "environment"
    assert rows["stage", "node"]["place"] == "PENSTOCK_STAGE_NODE"
    assert rows["stage", "decompress"]["origin"] == "default"


def test_config_show_text_is_a_settings_file_again(shown):
    import tomllib

    first = shown("--origin", file="[stage]\nnodes = 3\n")
    assert tomllib.loads(first.out)["stage"]["nodes"] == 3
    again = shown(file=first.out)
    assert (again.code, tomllib.loads(again.out)) == (0, tomllib.loads(first.out)), again.err


def test_config_unknown_setting_is_one_error_and_usage_exit(shown):
    done = shown(file="[stage]\nspeed = 3\n")
    assert done.code == 2
    assert done.err.startswith("error[config]: ")
    assert "hint:" in done.err
    assert "Traceback" not in done.err

# SPDX-License-Identifier: Apache-2.0
"""Tests every command on the command line: help, unknown words, errors without tracebacks, terminal widths."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tokenize
from pathlib import Path

import click
import pytest

import penstock.cli.app as app
from penstock import errors

CLI = Path(app.__file__).parent


def test_verbs_each_has_one_file_of_its_name():
    names = {verb: verb.replace("-", "_") for verb in app.VERBS}
    found = {verb for verb, name in names.items() if (CLI / f"{name}.py").exists() or (CLI / name).is_dir()}
    assert found == set(app.VERBS)


@pytest.mark.parametrize("verb", app.VERBS)
def test_verb_help_says_what_it_is_for(call_cli, verb):
    done = call_cli(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: penstock {verb}")


@pytest.mark.parametrize("verb", app.VERBS)
def test_verb_unknown_flag_is_a_usage_error(call_cli, verb):
    done = call_cli(verb, "--no-such-flag")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_unknown_verb_is_a_usage_error(call_cli):
    done = call_cli("stagee")
    assert (done.code, done.out) == (2, "")
    assert "stagee" in done.err
    assert "Did you mean" in done.err


def test_version_is_the_core_s(run_cli):
    from penstock import __version__

    assert run_cli("--version").out == f"penstock {__version__}\n"


def _wide(text: str, columns: int) -> list[str]:
    return [line for line in text.splitlines() if len(line) > columns]


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("verb", [None, *app.VERBS])
def test_help_fits_the_terminal(call_cli, monkeypatch, verb, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERMINAL_WIDTH", str(columns))
    done = call_cli(*([verb] if verb else []), "--help")
    assert _wide(done.out, columns) == []
    assert "\\b" not in done.out  # click keeps lines only after the character, and a raw docstring has its spelling


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_program(run_cli, shell):
    done = run_cli("--completion", shell)
    assert done.code == 0
    assert "_PENSTOCK_COMPLETE" in done.out


def test_completion_in_bash_offers_verbs_and_flags():
    program = Path(sys.executable).with_name("penstock")
    script = f"""
    export PATH="{program.parent}:$PATH"
    source <(penstock --completion bash)
    COMP_WORDS=(penstock st) COMP_CWORD=1; _penstock_completion penstock; echo "${{COMPREPLY[@]}}"
    COMP_WORDS=(penstock stage --no) COMP_CWORD=2; _penstock_completion penstock; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    verbs, flags = done.stdout.splitlines()
    assert verbs.split() == [verb for verb in app.VERBS if verb.startswith("st")]
    assert {"--node", "--nodes"} <= set(flags.split())


KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.fixture
def failing(monkeypatch):
    """Registers a command that raises the given exception."""

    def fail(error: BaseException) -> None:
        @click.command("fail")
        def command() -> None:
            raise error

        monkeypatch.setitem(app.VERBS, "fail", "Fail.")
        monkeypatch.setattr(app._Verbs, "get_command", lambda *_: command)

    return fail


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_becomes_two_lines_and_its_exit_code(failing, capsys, kind):
    failing(kind("s3://b/k ends inside record 88 (want 5, have 3)", hint="try again"))
    with pytest.raises(SystemExit) as ended:
        app.main(["fail"])
    assert ended.value.code == kind.exit_code
    out, err = capsys.readouterr()
    # After ^C the output starts with a line break, to leave the terminal's current line.
    assert (out, err.lstrip("\n")) == (
        "",
        f"error[{kind.code}]: s3://b/k ends inside record 88 (want 5, have 3)\n  hint: try again\n",
    )


@pytest.mark.parametrize(("setting", "is_coloured"), [("", True), ("1", False)])
def test_error_on_a_terminal_has_colour_unless_no_color_is_set(tmp_path, setting, is_coloured):
    ours, theirs = pty.openpty()
    program = Path(sys.executable).with_name("penstock")
    subprocess.run(
        [program, "index", tmp_path / "nothing"],
        env={**os.environ, "NO_COLOR": setting, "TERM": "xterm"},
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    result = os.read(ours, 4096)
    os.close(ours)
    assert (b"error[not-found]" in result, b"\x1b[31m" in result) == (True, is_coloured)


def test_error_with_debug_shows_where_it_was_raised(failing):
    failing(errors.Corrupt("broken"))
    with pytest.raises(errors.Corrupt, match="broken"):
        app.main(["fail", "--debug"])


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "a.json"),
            "error[not-found]: a.json: No such file or directory",
            3,
        ),
        (PermissionError(13, "Permission denied", "a.json"), "error[denied]: a.json: Permission denied", 3),
        (OSError(28, "No space left on device", "a.json"), "error[no-space]: a.json: No space left on device", 3),
        (OSError(5, "Input/output error"), "error[system]: Input/output error", 3),
        (KeyError("x"), "error[bug]: KeyError: 'x'", 1),
    ],
)
def test_error_of_python_becomes_penstock_error(failing, capsys, error, line, code):
    failing(error)
    with pytest.raises(SystemExit) as ended:
        app.main(["fail"])
    assert (ended.value.code, capsys.readouterr().err.splitlines()[0]) == (code, line)


@pytest.mark.parametrize("arguments", [["--help"], ["config", "--help"], ["--completion", "bash"]])
def test_reader_that_leaves_is_no_failure(arguments):
    program = Path(sys.executable).with_name("penstock")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [program, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_pipe_that_is_not_stdout_is_a_failure(failing, capfd):
    failing(BrokenPipeError(32, "Broken pipe"))
    with pytest.raises(SystemExit) as ended:
        app.main(["fail"])
    assert ended.value.code == 3
    assert capfd.readouterr().err == "error[system]: Broken pipe\n"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, click.exceptions.Abort])
def test_interrupt_exits_130(failing, capsys, kind):
    failing(kind())
    with pytest.raises(SystemExit) as ended:
        app.main(["fail"])
    assert (ended.value.code, capsys.readouterr().err.strip()) == (130, "interrupted")


def test_exit_codes_stay_within_the_design():
    assert {kind.exit_code for kind in KINDS} <= {1, 2, 3, 130, 143}


def test_print_and_exit_stay_in_the_cli():
    """Direction rule: only the CLI prints or exits. The check looks at tokens, so comments and texts may use the words."""
    found = []
    for path in sorted(CLI.parent.rglob("*.py")):
        # A rank process may exit, since it reports its result to the launcher by its exit code.
        if CLI in path.parents or path == CLI.parent / "train" / "rank.py":
            continue
        with path.open("rb") as source:
            names = [token for token in tokenize.tokenize(source.readline) if token.type == tokenize.NAME]
        found += [
            f"{path.name}:{token.start[0]} {token.string}" for token in names if token.string in {"print", "SystemExit"}
        ]
    assert found == []

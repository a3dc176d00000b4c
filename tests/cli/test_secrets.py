# SPDX-License-Identifier: Apache-2.0
"""Tests that no message repeats a secret from a URL, for every command and every parameter. Issue 19, P15."""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli import app
from penstock.errors import ConfigError, redact

SECRET = "Zq7secretZq7"
URLS = [
    f"s3://AKIDKEY:{SECRET}@bucket/key",
    f"s3://AKIDKEY:{SECRET[:4]}/{SECRET}@bucket/key",
    f"s3://{SECRET}@bucket",
    f"gs://user:{SECRET}@bucket/key",
    f"az://user:{SECRET}@container/key",
    f"az://container/key?sv=2024&sig={SECRET}",
    f"s3://bucket/key?X-Amz-Credential=x&X-Amz-Signature={SECRET}",
    f"s3://bucket/key?x-amz-security-token={SECRET}",
    f"https://user:{SECRET}@127.0.0.1:9/key",
    f"https://127.0.0.1:9/key?X-Goog-Signature={SECRET}",
    f"http://127.0.0.1:9/key?sig={SECRET}",
    f"hdfs://user:{SECRET}@127.0.0.1:9/key",
    f"ftp://user:{SECRET}@host/key",
]
# These commands serve or wait, so they would block the test. Other commands use the same URL parameters.
SERVES = {("emulate",), ("demo",)}


def _commands(command: click.Command, name: tuple[str, ...], parent: click.Context | None):
    context = click.Context(command, parent=parent)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _commands(found, (*name, below), context)
    elif name not in SERVES:
        yield name, command


COMMANDS = dict(_commands(app.penstock, (), None))


def _lines(name: tuple[str, ...], command: click.Command, url: str):
    """Command lines that pass `url` to each text parameter, one at a time, with plain values for the arguments."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    texts = [p for p in command.params if not getattr(p, "is_flag", False) and not isinstance(p.type, click.Choice)]
    for param in texts:
        given = [url if a is param else "plain" for a in arguments]
        flags = [] if isinstance(param, click.Argument) else [max(param.opts, key=len), url]
        yield [*name, *flags, "--", *given]


def _run(line: list[str]) -> str:
    """The whole output of a command line, including the traceback that --debug prints."""
    out = io.StringIO()
    hook = sys.excepthook
    try:
        with redirect_stdout(out), redirect_stderr(out):
            try:
                app.main(line)
            except SystemExit:
                pass
            except BaseException:  # --debug raises; the interpreter then calls the hook
                sys.excepthook(*sys.exc_info())
    finally:
        sys.excepthook = hook
    return out.getvalue()


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_verb_prints_no_secret_of_a_url(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    lines = [
        line
        for url in URLS[:: 1 if name in {("index",), ("stage",)} else 4]
        for line in _lines(name, COMMANDS[name], url)
    ]
    for line in lines[:60]:
        for debug in ([], ["--debug"]):
            printed = _run([*debug, *line])
            assert SECRET not in printed, (line, printed)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    url=st.sampled_from(URLS),
    before=st.text(st.characters(codec="ascii", exclude_characters="@"), max_size=20),
    after=st.sampled_from(["", "'", "`: no", " (want 3)", "\n", ", "]),
)
def test_prop_error_redacts_urls_anywhere_in_its_text(url, before, after):
    error = ConfigError(f"{before} {url}{after}", hint=f"try {url}")
    again = pickle.loads(pickle.dumps(error))
    for text in (str(error), repr(error), error.hint, str(again), "".join(traceback.format_exception(error))):
        assert SECRET not in text, text


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/mail@home",
        "hdfs://name:9000/user/a@b",
        "s3://b/k?versionId=3",
        "a=b",
        "file:///x?token",
        "want 5 have 3",
    ],
)
def test_redact_leaves_other_texts_alone(text):
    assert redact(text) == text

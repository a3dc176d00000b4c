# SPDX-License-Identifier: Apache-2.0
"""Tests that results of `penstock explain` contain no credentials of the observed program."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.explain.arguments import redact_arguments
from penstock.explain.tree import ProcessTree


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["python", "train.py", "s3://KEY:S3CRET@b/x"], ["python", "train.py", "s3://***@b/x"]),
        (["get", "https://b/x?sig=S3CRET&y=1"], ["get", "https://b/x?sig=***&y=1"]),
        (["t", "--api-key", "S3CRET", "data"], ["t", "--api-key", "***", "data"]),
        (["t", "--hf_token=S3CRET x", "data"], ["t", "--hf_token=***", "data"]),
        (["env", "AWS_SECRET_ACCESS_KEY=S3CRET", "python"], ["env", "AWS_SECRET_ACCESS_KEY=***", "python"]),
        (["sh", "-c", "cd a; DB_PASSWORD=S3CRET python a.py"], ["sh", "-c", "cd a; DB_PASSWORD=*** python a.py"]),
        (["sh", "-c", "t --api-key S3CRET --seed 1"], ["sh", "-c", "t --api-key *** --seed 1"]),
        (["python", "-c", "open(1, token='S3CRET')"], ["python", "-c", "open(1, token='***')"]),
        (["curl", "-H", "Authorization: Bearer S3CRET"], ["curl", "-H", "Authorization: ***"]),
        (["t", "--token", "--seed", "1"], ["t", "--token", "--seed", "1"]),
    ],
)
def test_arguments_credentials_are_masked(argv, shown):
    assert list(redact_arguments(argv)) == shown


@pytest.mark.parametrize(
    "argv", [["t", "--tokens", "4096", "--tokenizer", "gpt2", "--max-tokens=8", "--key", "frame"], ["x = monkey"]]
)
def test_arguments_without_credentials_are_unchanged(argv):
    assert list(redact_arguments(argv)) == argv


@given(st.lists(st.text()))
def test_prop_arguments_keep_their_number(argv):
    assert len(redact_arguments(argv)) == len(argv)


def test_tree_command_and_environment_of_a_process_hide_credentials():
    argv = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()", "--password", "S3CRET"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "MY_TOKEN": "T0KEN"}
    ) as child:
        child.stdout.readline()
        tree = ProcessTree(child.pid)
        tree.refresh()
        child.communicate()
    command = tree.records[child.pid].command
    assert command.endswith("--password ***")
    assert "T0KEN" not in command

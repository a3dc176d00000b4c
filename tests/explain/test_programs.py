# SPDX-License-Identifier: Apache-2.0
"""Tests of the programs that `explain` is proved with: they are ordinary, and a seed gives the same program again."""

import ast

import pytest

from tests.explain.planted import CASES, PROGRAMS, planted

# Cases that start a server or mount a disk are built by the tests of the verdicts.
LOCAL = ["gzip_one_thread", "pickling", "no_workers", "slow_model", "slow_peer", "healthy_files", "healthy_tar"]


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_program_does_not_import_penstock(path):
    names = [
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert names
    assert not [name for name in names if name and name.startswith(("penstock", "tests"))]


@pytest.mark.parametrize("name", LOCAL)
def test_planted_seed_draws_the_same_parameters_and_folder_is_removed(name, tmp_path):
    drawn = []
    for seed in (1, 1, 2, 3):
        with planted(CASES[name], tmp_path, seed=seed, seconds=1) as program:
            drawn.append(program.parameters)
            assert program.argv[-2:] == ("--seconds", "1")
        assert list(tmp_path.iterdir()) == []
    assert drawn[0] == drawn[1]
    assert len({str(each) for each in drawn}) > 1

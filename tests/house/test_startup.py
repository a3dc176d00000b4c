# SPDX-License-Identifier: Apache-2.0
"""Tests that heavy libraries are imported only when they are used (direction rule 5), by a list of loaded modules.

Also tests the start-up time against a generous limit.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tools.startup import BUDGETS_S, GROSS, Startup, measure

HEAVY = [
    "numpy",
    "torch",
    "jax",
    "tensorflow",
    "altair",
    "vl_convert",
    "pandas",
    "mpi4py",
    "zarr",
    "h5py",
    "boto3",
    "botocore",
]


def _loaded(code: str) -> set[str]:
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_penstock_loads_nothing_heavy():
    assert _loaded("import penstock") & {*HEAVY, "click", "rich", "msgspec", "penstock._native"} == set()


def test_help_loads_no_verb_and_nothing_heavy():
    loaded = _loaded("import penstock.cli.app as app\ntry:\n    app.main(['--help'])\nexcept SystemExit:\n    pass")
    assert (
        loaded
        & {
            *HEAVY,
            "rich",
            "tomllib",
            *(f"penstock.cli.{verb}" for verb in ("stage", "train", "demo", "emulate", "dataset")),
        }
        == set()
    )


@pytest.mark.parametrize("verb", ["dataset", "emulate", "index", "stage", "train", "demo", "config"])
def test_verb_help_loads_nothing_heavy(verb):
    loaded = _loaded(
        f"import penstock.cli.app as app\ntry:\n    app.main(['{verb}', '--help'])\nexcept SystemExit:\n    pass"
    )
    assert loaded & set(HEAVY) == set()


def test_dir_of_penstock_loads_nothing():
    assert (
        _loaded("import penstock; assert 'Loader' in dir(penstock)") & {*HEAVY, "penstock.feed", "penstock._native"}
        == set()
    )


def test_startup_stays_within_gross_budgets(capsys):
    rows = measure(repeats=5)
    with capsys.disabled():
        print("", *rows, sep="\n")
    assert {row.name for row in rows} == set(BUDGETS_S)
    assert [str(row) for row in rows if row.gross] == []


def test_startup_gross_breach_is_told_from_a_small_one():
    assert not Startup("x", 0.01, 0.15 * 2, 0.15).gross
    assert Startup("x", 0.01, 0.15 * (GROSS + 1), 0.15).gross

# SPDX-License-Identifier: Apache-2.0
"""Tests that each guard finds a planted violation and accepts a clean tree. `make guards` checks this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.guards import circles, crates, leaks, length, licence, ownership, prose, public_names, readers, skips

SPDX = "SPDX-License-Identifier: Apache-2.0"


@pytest.fixture
def tree(tmp_path: Path):
    """Writes files into a fresh git repository; returns its root."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def plant(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return plant


def test_licence_missing_line_is_found(tree):
    assert licence.find(tree(a_dot_py="x = 1\n")) == [f"a.py: the first line must be the comment `{SPDX}`"]


@pytest.mark.parametrize("text", [f"# {SPDX}\n", f"#!/bin/sh\n# {SPDX}\n"])
def test_licence_present_line_is_accepted(tree, text):
    assert licence.find(tree(a_dot_sh=text)) == []


def test_licence_ignored_file_is_not_asked(tree):
    assert licence.find(tree(_dot_gitignore="a.py\n", a_dot_py="x = 1\n")) == []


def test_length_long_file_without_reason_is_found(tree):
    text = f"# {SPDX}\n" + "x = 1\n" * length.LIMIT
    assert length.find(tree(a_dot_py=text)) == [
        f"a.py: {length.LIMIT + 1} lines; split it, or let its first comment say why it is longer than {length.LIMIT}"
    ]


def test_length_long_file_with_reason_is_accepted(tree):
    text = f"# {SPDX}\n# One table; it is long because the standard's is.\n" + "x = 1\n" * length.LIMIT
    assert length.find(tree(a_dot_py=text)) == []


def test_length_reason_in_code_does_not_count(tree):
    text = f"# {SPDX}\nimport long\n# long\n" + "x = 1\n" * length.LIMIT
    assert len(length.find(tree(a_dot_py=text))) == 1


# The strings are concatenated, so that the guard does not flag this file itself.
LEAKS = {
    "home": ("data = '/ro" + "ot/data'", "an absolute path of somebody's machine"),
    "worktree": ("see /wo" + "rk/main/x.py", "an absolute path of somebody's machine"),
    "index": ("--index-url https://py" + "pi.example.org/simple", "a package registry or mirror"),
    "mirror": ("url = 'https://mir" + "ror.corp.example/x'", "a package registry or mirror"),
    "access key": ("AKI" + "AQ3EGZXCVBNMASDFG", "an AWS access key"),
    "private key": ("-----BEGIN RSA PRIV" + "ATE KEY-----", "a private key"),
    "token": ("ghp" + "_" + "a1B2" * 9, "a token"),
    "signed": ("?X-Amz-Sig" + "nature=" + "0a" * 32, "a signed URL"),
}


@pytest.mark.parametrize("case", LEAKS)
def test_leaks_planted_secret_is_found(tree, case):
    line, what = LEAKS[case]
    assert leaks.find(tree(notes_dot_md=f"fine\n{line}\n")) == [f"notes.md:2: looks like {what}"]


@pytest.mark.parametrize(
    "line",
    [
        "$HOME/work/x",
        "/tmp/x",
        "~/work/x",
        "file:///data",
        "https://github.com/a/b",
        "AKIAIOSFODNN7" + "EXAMPLE",
        "../work/x",
    ],
)
def test_leaks_harmless_line_is_accepted(tree, line):
    assert leaks.find(tree(notes_dot_md=line)) == []


def test_leaks_download_address_in_lock_is_found(tree):
    line = 'source = "regis' + "try+https://regis" + 'try.example/index"'
    assert leaks.find(tree(Cargo_dot_lock=line)) == ["Cargo.lock:1: looks like a package registry or mirror"]


def _package(name: str, *dependencies: str, kind: str | None = None) -> dict:
    return {"name": name, "dependencies": [{"name": d, "kind": kind} for d in dependencies]}


def test_crates_arrow_to_the_right_is_found():
    assert crates.breaches_of([_package("penstock-codec", "penstock-store", "zstd")]) == [
        "crates/codec may not know crates/store"
    ]


def test_crates_pyo3_outside_python_is_found():
    assert crates.breaches_of([_package("penstock-feed", "pyo3")]) == ["crates/feed may not know Python (pyo3)"]


def test_crates_unknown_crate_asks_for_a_rule():
    assert len(crates.breaches_of([_package("penstock-confetti")])) == 1


def test_crates_peer_in_tests_is_accepted():
    assert crates.breaches_of([_package("penstock-store", "penstock-emulator", kind="dev")]) == []


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("report", "import penstock._native"),
        ("report", "from penstock import feed"),
        ("price", "def late():\n    import torch\n"),
        ("stage", "from penstock.testing import suites"),
        ("workloads", "from penstock.feed import Loader"),
    ],
)
def test_readers_wrong_import_is_found(tmp_path, place, text):
    room = tmp_path / "python/penstock" / place
    room.mkdir(parents=True)
    (room / "a.py").write_text(text)
    assert len(readers.find(tmp_path)) == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("report", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.feed import Loader\n"),
        ("report", "import penstock.units, penstock.bench.results"),
        ("workloads", "from penstock.protocols import Demand\nfrom penstock.workloads import step"),
        ("workloads", "import torch"),
        ("stage", "import penstock.feed_like"),
    ],
)
def test_readers_right_import_is_accepted(tmp_path, place, text):
    room = tmp_path / "python/penstock" / place
    room.mkdir(parents=True)
    (room / "a.py").write_text(text)
    assert readers.find(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch = pytest.importorskip('torch')",
        "def test_a():\n    pytest.skip('not today')",
        "@pytest.mark.skipif(True, reason='x')\ndef test_a(): ...",
        "pytestmark = pytest.mark.skip",
        "from pytest import importorskip",
        "from unittest import SkipTest",
    ],
)
def test_skips_skipped_test_is_found(tree, line):
    (breach,) = skips.find(tree(tests__test_a_dot_py=f"import pytest\n{line}\n"))
    assert breach.endswith("skips a test; a missing need is a failure")


@pytest.mark.parametrize("line", ["'pytest.importorskip'", "stream.skip(3)", "report.skipped", "pytest.mark.slow"])
def test_skips_other_code_is_accepted(tree, line):
    assert skips.find(tree(tests__test_a_dot_py=f"{line}\n", tools__b_dot_py="pytest.importorskip('x')\n")) == []


@pytest.mark.parametrize(
    "line",
    [
        "shutil.rmtree(folder)", "stack.callback(shutil.rmtree, folder)", "os.kill(pid, 9)", "os.killpg(pid, 9)",
        "path.unlink()", "path.parent.rmdir()", "os.remove(path)", "from shutil import rmtree", "from os import kill",
        "run(['rm', '-rf', folder])", "tried('umount', path)", "run(['pkill', '-f', 'x'])",
    ],
)  # fmt: skip
def test_ownership_removal_or_signal_elsewhere_is_found(tree, line):
    (breach,) = ownership.find(tree(python__penstock__bench__a_dot_py=f"import os, shutil\n{line}\n"))
    assert breach.startswith("python/penstock/bench/a.py:2: ")
    assert breach.endswith("may be used only in penstock.ownership")


@pytest.mark.parametrize(
    "line",
    ["process.kill()", "child.terminate()", "names.remove('x')", "'rm'", "for program in ('mount', 'umount'): which(program)", "shutil.which('umount')"],
)  # fmt: skip
def test_ownership_other_code_is_accepted(tree, line):
    planted = {
        "python__penstock__a_dot_py": line,
        "python__penstock__ownership__a_dot_py": "os.unlink(x)",
        "tests__a_dot_py": "os.unlink(x)",
    }
    assert ownership.find(tree(**planted)) == []


def test_public_names_heading_is_read_with_and_without_call():
    page = "### `penstock.open(url, manifest=None)`\n#### `penstock.torch.Loader`\ntext `penstock.hidden`\n"
    assert public_names.documented(page) == {"open", "torch"}


def test_public_names_list_is_read_without_running(tmp_path):
    (tmp_path / "m.py").write_text("raise SystemExit\n__all__ = ['a', 'b']\n")
    assert public_names.listed(tmp_path / "m.py") == ["a", "b"]


def test_prose_count_above_its_ceiling_is_found(tree, monkeypatch, tmp_path_factory):
    ceilings = tmp_path_factory.mktemp("ceilings") / "prose.json"
    monkeypatch.setattr(prose, "CEILINGS", ceilings)
    root = tree(crates__a_dot_rs="// What nobody stands by.\n")
    ceilings.write_text('{"opens with What": 1, "nobody, whoever, somebody": 1, "stands": 0}')
    [breach] = prose.find(root)
    assert breach.startswith("`stands` occurs 1 times, and 0 are allowed")


def test_circles_of_python_modules_are_found(tree):
    root = tree(
        python__penstock__a_dot_py="from penstock import b\n",
        python__penstock__b_dot_py="def f():\n    from penstock.c import x\n",
        python__penstock__c_dot_py="from . import a\n",
        python__penstock__d_dot_py="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.e import x\n",
        python__penstock__e_dot_py="from penstock import d\n",
    )
    [breach] = circles.find(root)
    assert breach.startswith("penstock.a <-> penstock.b <-> penstock.c use each other")


def test_circles_of_rust_files_are_found_also_through_a_reexport(tree):
    root = tree(
        crates__x__src__lib_dot_rs="mod a;\nmod b;\nmod c;\npub use b::B;\n",
        crates__x__src__a_dot_rs="use crate::{B, c::C};\n",
        crates__x__src__b_dot_rs="fn f() { crate::a::g(); }\n",
        crates__x__src__c_dot_rs="pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
    )
    [breach] = circles.find(root)
    assert breach.startswith("x:a <-> x:b use each other")


def test_circles_of_a_parent_and_its_child_are_accepted(tree):
    root = tree(
        crates__x__src__p__mod_dot_rs="mod child;\nuse self::child::C;\n",
        crates__x__src__p__child_dot_rs="use super::P;\n",
        crates__x__src__lib_dot_rs="mod p;\n",
        python__penstock__q__child_dot_py="from penstock import q\n",
    )
    (root / "python/penstock/q/__init__.py").write_text("from penstock.q import child\n")
    assert circles.find(root) == []

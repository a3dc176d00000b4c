# SPDX-License-Identifier: Apache-2.0
"""Tests the setup of the main Makefile targets (homes, targets, pins), as far as possible without a bare machine."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))


@pytest.fixture
def make_rustfmt(tmp_path):
    """Runs `make rustfmt` with a stand-in cargo that prints its home variables; returns them."""

    def run(home: str, *, installed_under: Path, **env: str) -> dict[str, str]:
        cargo = installed_under / ".cargo/bin/cargo"
        cargo.parent.mkdir(parents=True)
        cargo.write_text('#!/bin/sh\necho "told HOME=$HOME RUSTUP_HOME=$RUSTUP_HOME"\n')
        cargo.chmod(0o755)
        kept = {
            name: value for name, value in os.environ.items() if name not in {"RUSTUP_HOME", "MAKEFLAGS", "MAKELEVEL"}
        }
        done = subprocess.run(
            ["make", "-C", str(ROOT), "rustfmt"],
            env={**kept, "PATH": f"{cargo.parent}:{os.environ['PATH']}", "HOME": home, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return dict(
            re.findall(r"(\w+)=(\S*)", next(line for line in done.stdout.splitlines() if line.startswith("told")))
        )

    return run


def test_rustup_home_is_found_beside_the_proxies(make_rustfmt, tmp_path):
    (tmp_path / "old/.rustup/toolchains/stable").mkdir(parents=True)
    (tmp_path / "new").mkdir()
    result = make_rustfmt(str(tmp_path / "new"), installed_under=tmp_path / "old")
    assert result == {"HOME": str(tmp_path / "new"), "RUSTUP_HOME": str(tmp_path / "old/.rustup")}


def test_rustup_home_of_the_user_is_left_alone(make_rustfmt, tmp_path):
    (tmp_path / "old/.rustup/toolchains/stable").mkdir(parents=True)
    (tmp_path / "new/.rustup/toolchains/mine").mkdir(parents=True)
    assert make_rustfmt(str(tmp_path / "new"), installed_under=tmp_path / "old")["RUSTUP_HOME"] == ""


def test_rustup_home_that_is_set_is_left_alone(make_rustfmt, tmp_path):
    (tmp_path / "old/.rustup/toolchains/stable").mkdir(parents=True)
    result = make_rustfmt(str(tmp_path), installed_under=tmp_path / "old", RUSTUP_HOME="/elsewhere")
    assert result["RUSTUP_HOME"] == "/elsewhere"


def test_empty_home_becomes_one_in_the_tree(make_rustfmt, tmp_path):
    assert make_rustfmt("", installed_under=tmp_path / "old")["HOME"] == str(ROOT / ".tools/home")


def test_help_lists_every_target_that_says_what_it_does():
    done = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, timeout=60, check=True)
    listed = set(re.findall(r"^  make ([a-z-]+)", done.stdout, flags=re.MULTILINE))
    assert listed == TARGETS
    assert {"demo", "test", "check", "bench", "test-peers", "fmt", "clean", "help"} <= listed


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_page_names_only_targets_that_exist(page):
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / page).read_text()))
    assert named
    assert named - TARGETS == set()


def _pinned(path: Path) -> dict[str, str]:
    pins = {}
    for line in path.read_text().splitlines():
        found = re.fullmatch(r"([a-z0-9][a-z0-9.-]*)==(\S+)(?: ; .+)?", line)
        assert found, f"{path.name} holds `{line}`, which is no pin"
        pins[found[1]] = found[2]
    return pins


def test_requirements_pin_every_direct_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *extras["torch"],
        *extras["report"],
        *project["dependency-groups"]["dev"],
    ]
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in wanted}
    assert names - set(_pinned(ROOT / "requirements/dev.txt")) == set()
    assert "tensorflow-cpu" in _pinned(ROOT / "requirements/tf.txt")


def test_ci_runs_both_tiers_without_measurements():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"make \S+", script.read_text()) == ["make test", "make test-system-parallel"]
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)


def test_readme_names_every_marker_that_ci_leaves_out():
    left_out = set(re.findall(r"not (needs_\w+)", re.search(r"^LEFT_OUT := .*", MAKEFILE, re.MULTILINE)[0]))
    assert left_out
    section = (ROOT / "README.md").read_text().partition("**Tests and CI.**")[2].partition("\n**")[0]
    assert set(re.findall(r"`(needs_\w+)`", section)) == left_out


def test_every_bench_of_make_bench_runs_without_arguments():
    assert "benches/bench_*.py" in MAKEFILE
    benches = sorted((ROOT / "benches").glob("bench_*.py"))
    assert benches
    assert [path.name for path in benches if "required=True" in path.read_text()] == []

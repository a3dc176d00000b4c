# SPDX-License-Identifier: Apache-2.0
"""Tests that every package is listed in import-linter's layers, so that a new one cannot be forgotten."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def _rooms() -> set[str]:
    package = ROOT / "python/penstock"
    rooms = {path.parent.name for path in package.glob("*/*.py")}
    return rooms | {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}


def test_layers_name_every_room_once():
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["id"] == "layers"]
    named = [name for layer in layers for name in re.findall(r"penstock\.(\w+)", layer)]
    assert len(named) == len(set(named))
    assert _rooms() - set(named) == set()


def test_readers_contract_names_every_reader_that_exists():
    (readers,) = [set(contract["source_modules"]) for contract in CONTRACTS if contract["id"] == "readers"]
    assert {f"penstock.{room}" for room in _rooms() & {"price", "plan", "report"}} <= readers

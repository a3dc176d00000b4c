# SPDX-License-Identifier: Apache-2.0
"""Tests that the clean-up after an aborted benchmark removes that run's trees, and nothing of an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.bench.storage.scratch_dir import ScratchDir, sweep
from penstock.bench.storage.spec import Point

if TYPE_CHECKING:
    from pathlib import Path

_EARLIER, _LOST = Point(files=3), Point(files=5)


def _left(place: Path, session: str, *points: Point) -> list[Path]:
    """The trees of a run that ended without errors and kept its files."""
    with ScratchDir(place, session) as ground:
        trees = [ground.tree(point, is_made=True) for point in points]
    for tree in trees:
        (tree / "f0000000").write_bytes(b"x")
    return trees


def test_sweep_takes_a_lost_runs_trees_and_leaves_those_of_an_earlier_one(tmp_path: Path) -> None:
    place = tmp_path / "bench"
    [earlier] = _left(place, "first", _EARLIER)
    [lost] = _left(place, "second", _LOST)
    assert not sweep(place, "third")
    assert sweep(place, "second")
    assert (earlier / "f0000000").exists()
    assert not lost.exists()
    with ScratchDir(place, "fourth") as ground:  # the folder still counts as a bench folder
        assert ground.tree(_EARLIER, is_made=False) == earlier


def test_sweep_of_a_run_with_the_folder_to_itself_removes_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "bench"
    _left(place, "only", _EARLIER, _LOST)
    assert sweep(place, "only")
    assert not place.exists()


def test_sweep_of_what_no_run_has_marked_removes_nothing(tmp_path: Path) -> None:
    tree = tmp_path / _EARLIER.folder
    tree.mkdir()
    for marker in (None, "[]", '{"session": "x", "trees": 5}', '{"session": "x", "trees": ["../thesis"]}'):
        if marker is not None:
            (tmp_path / ".penstock-bench.json").write_text(marker)
        assert not sweep(tmp_path, "x")
        assert tree.exists()

# SPDX-License-Identifier: Apache-2.0
"""Tests that an atomically written file appears either complete or not at all."""

from __future__ import annotations

import pytest

from penstock.atomic_file import PART_PREFIX, atomic_file


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_atomic_file_appears_at_the_end_of_its_block(durable, tmp_path):
    with atomic_file(tmp_path / "a", durable=durable) as out:
        out.write(b"one")
        assert [name.startswith(PART_PREFIX) for name in _names(tmp_path)] == [True]
    assert (tmp_path / "a").read_bytes() == b"one"
    assert _names(tmp_path) == ["a"]


def test_atomic_file_of_a_block_that_raises_leaves_the_earlier_file(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(TypeError), atomic_file(tmp_path / "a") as out:
        out.writelines([b"half", None])  # type: ignore[list-item]
    assert (tmp_path / "a").read_bytes() == b"before"
    assert _names(tmp_path) == ["a"]


def test_atomic_file_that_must_be_new_replaces_nothing(tmp_path):
    with atomic_file(tmp_path / "a", replaces=False) as out:
        out.write(b"first")
    with pytest.raises(FileExistsError), atomic_file(tmp_path / "a", replaces=False) as out:
        out.write(b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert _names(tmp_path) == ["a"]


def test_atomic_file_may_have_the_longest_name(tmp_path):
    with atomic_file(tmp_path / ("a" * 255)) as out:
        out.write(b"one")
    assert _names(tmp_path) == ["a" * 255]

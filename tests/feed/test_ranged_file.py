# SPDX-License-Identifier: Apache-2.0
"""Tests files over byte ranges: what they ask of the store, and what they keep."""

from __future__ import annotations

import random

from penstock import _native
from penstock.feed.ranged_file import RangedFile


class Recorded:
    """Reads of a store, with a list of the ranges (start, length)."""

    def __init__(self, folder):
        self.files, self.asked = _native.Files(f"file://{folder}/", {}), []

    def read(self, name, ranges, **how):
        self.asked += ranges
        return self.files.read(name, ranges, **how)


def test_ranged_file_joins_what_is_read_ahead(tmp_path):
    data = random.Random(1).randbytes(1000)
    (tmp_path / "a").write_bytes(data)
    files = Recorded(tmp_path)
    file = RangedFile(files, b"a", 1000, None)
    file.prefetch([(0, 100), (600, 2000), (50, 200), (200, 300)])
    assert files.asked == [(0, 300), (600, 400)]
    assert file.read(250) == data[:250]
    file.seek(600)
    assert file.read(10) + file.read(10) == data[600:620]
    assert file.ranges() == [(0, 250), (600, 620)]
    assert len(files.asked) == 2


def test_ranged_file_keeps_a_limited_part(tmp_path):
    size, step = 80 << 20, 1 << 20
    with (tmp_path / "a").open("wb") as out:
        out.truncate(size)
    files = Recorded(tmp_path)
    file = RangedFile(files, b"a", size, None)
    file.prefetch([(0, step)])
    for passed in range(2):
        file.seek(0)
        for _ in range(size // step):
            assert len(file.read(step)) == step
        assert sum(length for _, length in files.asked) == step + (size - step) * (passed + 1)
    file.seek(-24 * step, 2)
    assert len(file.read()) == 24 * step
    assert sum(length for _, length in files.asked) == step + (size - step) * 2

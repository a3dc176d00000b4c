# SPDX-License-Identifier: Apache-2.0
"""Tests how well a window mixes samples that are sorted by class (the worst case), with fixed seeds."""

from __future__ import annotations

from benches.bench_shuffle import measure


def test_shuffle_of_16_objects_trains_as_a_full_one_and_narrow_windows_are_seen_to_be_worse():
    full, one, sixteen, all_of_them = measure(100, 50, [1, 16, 100])
    assert abs(full[1]) < 0.05
    assert abs(all_of_them[1]) < 0.05  # a window of all objects is a full shuffle
    assert one[1] > 0.9  # the figure detects poor mixing
    assert one[1] > sixteen[1]
    assert one[3][-1] > full[3][-1] * 1.05
    assert abs(all_of_them[3][-1] / full[3][-1] - 1) < 0.1
    assert sixteen[3][-1] < one[3][-1]

# SPDX-License-Identifier: Apache-2.0
"""What a window's mixing is worth, on samples sorted by class: the worst case. Pure arithmetic with fixed seeds."""

from __future__ import annotations

from benches.bench_shuffle import measure


def test_shuffle_of_16_objects_trains_as_a_full_one_and_narrow_windows_are_seen_to_be_worse():
    full, one, sixteen, all_of_them = measure(100, 50, [1, 16, 100])
    assert abs(full[1]) < 0.05
    assert abs(all_of_them[1]) < 0.05  # a window of everything is a full shuffle
    assert one[1] > 0.9  # the figure sees what is not mixed
    assert one[1] > sixteen[1]
    assert one[3][-1] > full[3][-1] * 1.05
    assert abs(all_of_them[3][-1] / full[3][-1] - 1) < 0.1
    assert sixteen[3][-1] < one[3][-1]

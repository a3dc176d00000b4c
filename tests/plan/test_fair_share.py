# SPDX-License-Identifier: Apache-2.0
"""Tests the max-min fair rates: no limit is overused, and no transfer could be faster without slowing a slower one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.fair_share import OWN_CAP, TransferClass, fair_rates

_POSITIVE = st.floats(1e-3, 1e6)


@st.composite
def _cases(draw):
    capacities = draw(st.lists(_POSITIVE, min_size=1, max_size=4))
    uses = st.lists(st.tuples(st.integers(0, len(capacities) - 1), _POSITIVE), max_size=3, unique_by=lambda use: use[0])
    each = st.builds(TransferClass, cap=_POSITIVE, uses=uses.map(tuple), count=st.integers(0, 600))
    return draw(st.lists(each, min_size=1, max_size=6)), capacities


def _used(classes, rates, limit):
    return sum(
        one.count * units * rate
        for one, (rate, _) in zip(classes, rates, strict=True)
        for index, units in one.uses
        if index == limit
    )


@given(_cases())
def test_fair_rates_never_exceed_a_cap_or_a_limit(case):
    classes, capacities = case
    rates = fair_rates(classes, capacities)
    for one, (rate, _) in zip(classes, rates, strict=True):
        assert 0 <= rate <= one.cap * (1 + 1e-9)
    for limit, capacity in enumerate(capacities):
        assert _used(classes, rates, limit) <= capacity * (1 + 1e-9)


@given(_cases())
def test_fair_rates_are_max_min(case):
    classes, capacities = case
    rates = fair_rates(classes, capacities)
    for one, (rate, bound) in zip(classes, rates, strict=True):
        if not one.count:
            assert rate == 0
        elif bound == OWN_CAP:
            assert rate == pytest.approx(one.cap)
        else:
            # The limit is full, and none of its users is faster.
            assert _used(classes, rates, bound) == pytest.approx(capacities[bound], rel=1e-6)
            sharing = [
                other_rate
                for other, (other_rate, _) in zip(classes, rates, strict=True)
                if other.count and any(index == bound for index, _ in other.uses)
            ]
            assert rate >= max(sharing) * (1 - 1e-6)


def test_fair_rates_give_what_capped_transfers_leave():
    slow = TransferClass(cap=10.0, uses=((0, 1.0),), count=2)
    fast = TransferClass(cap=100.0, uses=((0, 1.0),), count=3)
    assert fair_rates([slow, fast], [110.0]) == [(10.0, OWN_CAP), (30.0, 0)]


def test_fair_rates_at_a_refusing_limit_leave_a_part_unused():
    backing_off = TransferClass(cap=100.0, uses=((0, 1.0),), back_off=0.5, count=2)
    steady = TransferClass(cap=100.0, uses=((0, 1.0),), count=2)
    assert fair_rates([backing_off, steady], [40.0], frozenset({0})) == [(5.0, 0), (10.0, 0)]
    assert fair_rates([backing_off, steady], [40.0]) == [(10.0, 0), (10.0, 0)]

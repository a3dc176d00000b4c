# SPDX-License-Identifier: Apache-2.0
"""Quantile of Student's t distribution for 95 % intervals of means and fits."""

from __future__ import annotations

__all__ = ["student_quantile"]

# 0.975 quantiles of Student's t for 1 to 10 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


def student_quantile(freedom: int) -> float:
    """0.975 quantile of Student's t, to 3 digits. Above 10 degrees of freedom, the quantile is computed by the
    expansion in 1/freedom (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)

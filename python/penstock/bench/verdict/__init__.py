# SPDX-License-Identifier: Apache-2.0
"""Bottleneck analysis of a sweep: the limit that each point is at, its evidence, a change, and the change's expected
gain.

Rows in, judgements out; nothing is measured, read or printed here. docs/guides/measure.md explains the method.
"""

from penstock.bench.verdict.judge import REGIMES, Judged, Verdict, classify

__all__ = ["REGIMES", "Judged", "Verdict", "classify"]

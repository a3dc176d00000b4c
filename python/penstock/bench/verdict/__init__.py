# SPDX-License-Identifier: Apache-2.0
"""Bottleneck analysis of a sweep: each point's limit and its evidence, a change to try, and its expected gain.

Rows in, judgements out; nothing is measured, read or printed here. docs/guides/measure.md explains the method.
"""

from penstock.bench.verdict.judge import REGIMES, Judged, Verdict, classify

__all__ = ["REGIMES", "Judged", "Verdict", "classify"]

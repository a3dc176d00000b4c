# SPDX-License-Identifier: Apache-2.0
"""Bottleneck analysis of a sweep: each point's limit with its evidence, a change to try, and the expected gain.

Turns rows into judgements; does not measure, read or print anything. docs/guides/measure.md explains the method.
"""

from penstock.bench.verdict.classify import REGIMES, Judged, Verdict, classify

__all__ = ["REGIMES", "Judged", "Verdict", "classify"]

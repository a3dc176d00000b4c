# SPDX-License-Identifier: Apache-2.0
"""Which limit each point of a sweep is at, the evidence for it, what to change and what that should bring.

Rows in, judgements out; nothing is measured, read or printed here. docs/guides/measure.md says how it is decided.
"""

from penstock.bench.verdict.judge import REGIMES, Judged, Verdict, classify

__all__ = ["REGIMES", "Judged", "Verdict", "classify"]

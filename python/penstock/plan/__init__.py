# SPDX-License-Identifier: Apache-2.0
"""Probe → model → prediction: duration of a job on a path, its bottleneck, its cost. Pure; moves no bytes."""

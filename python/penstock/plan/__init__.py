# SPDX-License-Identifier: Apache-2.0
"""Predicts the duration, the bottleneck and the cost of a job on a path with a model. Pure functions without I/O."""

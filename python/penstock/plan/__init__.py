# SPDX-License-Identifier: Apache-2.0
"""Probe → model → prediction: how long a job takes on a path, what limits it, what it costs. Pure; moves no bytes."""

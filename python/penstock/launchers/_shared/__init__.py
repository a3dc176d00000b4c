# SPDX-License-Identifier: Apache-2.0
"""Bases that several launchers share: subprocess and multi-rank launchers, child processes, allocations of batch systems."""

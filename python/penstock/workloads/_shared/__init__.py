# SPDX-License-Identifier: Apache-2.0
"""Bases that several workloads share; no workload itself."""

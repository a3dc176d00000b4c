# SPDX-License-Identifier: Apache-2.0
"""Workloads: what eats samples. One plug-in each, found by entry point; none imports another."""

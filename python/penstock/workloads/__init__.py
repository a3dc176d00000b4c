# SPDX-License-Identifier: Apache-2.0
"""Workloads, which consume samples. Each is a plug-in, found by its entry point; none imports another."""

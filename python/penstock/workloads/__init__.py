# SPDX-License-Identifier: Apache-2.0
"""Workloads, which consume samples. Each is a plug-in with an entry point; none imports another."""

# SPDX-License-Identifier: Apache-2.0
"""Computes costs from a price book, and looks up disk limits in a disk book. Both books have dated sources.

Only `azure_retail` uses the network.
"""

# SPDX-License-Identifier: Apache-2.0
"""Computes costs from a price book and disk limits from a disk book, both with dated sources. Uses no network."""

# SPDX-License-Identifier: Apache-2.0
"""Generators of synthetic datasets that compress, decode and train like the real data. Independent of any store."""

# SPDX-License-Identifier: Apache-2.0
"""Dated price and tier books (data) and cost formulae (pure functions). Moves no bytes, asks no network."""

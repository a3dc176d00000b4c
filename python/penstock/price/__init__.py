# SPDX-License-Identifier: Apache-2.0
"""Price book and disk book (dated data), and cost formulae (pure functions). Moves no bytes, uses no network."""

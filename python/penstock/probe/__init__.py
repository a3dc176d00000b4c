# SPDX-License-Identifier: Apache-2.0
"""Probe: measures the limits of a store or a disk in minutes, and writes them as an entry of a tier book.

`objects` and `files` run the phases, `estimates` computes the limits from their rows, and `card` holds the result.
`doctor` checks the connection to a store: host names, TCP, TLS, clock, credentials and permissions.
"""

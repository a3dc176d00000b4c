# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: the result schema, its reader and writer, and the description of the machine that measured."""

# SPDX-License-Identifier: Apache-2.0
"""Measuring that can be trusted later: the result schema, its writer and reader, and the machine that a row came from."""

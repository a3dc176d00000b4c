# SPDX-License-Identifier: Apache-2.0
"""Measurement: the result schema, its writer and reader, and the card of the machine that measured."""

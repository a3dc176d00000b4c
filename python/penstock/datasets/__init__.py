# SPDX-License-Identifier: Apache-2.0
"""Honest generators: data that compresses, decodes and can be learnt from as the real data does. Knows no store."""

# SPDX-License-Identifier: Apache-2.0
"""Data generators whose output compresses, decodes and trains like the real data. Know no store."""

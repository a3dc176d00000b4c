# SPDX-License-Identifier: Apache-2.0
"""Generators of files (each with --check) and guards. None of this is shipped."""

# SPDX-License-Identifier: Apache-2.0
"""Generators (each with --check) and guards. Nothing here is shipped."""

# SPDX-License-Identifier: Apache-2.0
"""Importers: results of other tools, and of our own traces and runs, as rows."""

# SPDX-License-Identifier: Apache-2.0
"""Importers that convert results of other tools, and Penstock's own traces and training runs, to rows."""

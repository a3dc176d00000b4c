# SPDX-License-Identifier: Apache-2.0
"""Command line: one file per verb, loaded when it is called. The only room that prints, exits or reads argv."""

from penstock.cli.app import main

__all__ = ["main"]

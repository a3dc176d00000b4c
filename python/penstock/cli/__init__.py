# SPDX-License-Identifier: Apache-2.0
"""Command line: one module per verb, loaded when the verb is called. Only this package writes to stdout and stderr,
exits, or reads argv.
"""

from penstock.cli.app import main

__all__ = ["main"]

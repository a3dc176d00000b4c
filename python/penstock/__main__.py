# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m penstock`: runs the command line without the installed script."""

from penstock.cli import main

main()

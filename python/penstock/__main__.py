# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock`: the command line without the script."""

from penstock.cli import main

main()

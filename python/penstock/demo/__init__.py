# SPDX-License-Identifier: Apache-2.0
"""Demo: four storage paths, one training, one report.

Owns the order of events and the sizes; every step is a public part of Penstock, called as a user would. Prints nothing
and sets no exit code.
"""

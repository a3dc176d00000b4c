# SPDX-License-Identifier: Apache-2.0
"""Demo: four storage paths, one training, one report.

Owns the order of events and the sizes. Every step uses a public part of Penstock, as a user would. Does not print and
does not set an exit code.
"""

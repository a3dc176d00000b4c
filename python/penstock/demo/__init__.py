# SPDX-License-Identifier: Apache-2.0
"""Demo: trains the same model over four storage paths, and writes a report that compares them.

Owns the order of the steps and the data sizes. Every step uses the public API of Penstock, as a user would. Does not
print and does not set an exit code.
"""

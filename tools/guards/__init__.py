# SPDX-License-Identifier: Apache-2.0
"""Guards: each module checks one rule of the repository; its `find(root)` returns one line per violation."""

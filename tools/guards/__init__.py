# SPDX-License-Identifier: Apache-2.0
"""Guards: each module is one rule of the house. `find(root)` gives one line for each breach, and no line when all is well."""

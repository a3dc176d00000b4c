# SPDX-License-Identifier: Apache-2.0
"""Scripts that launchers run on nodes. `node_program` sends them as text; they import only `penstock.ownership`."""

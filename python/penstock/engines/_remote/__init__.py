# SPDX-License-Identifier: Apache-2.0
"""Scripts that engines run on nodes. `node_program` sends these scripts as text; the scripts import only
`penstock.ownership`.
"""

# SPDX-License-Identifier: Apache-2.0
"""Scripts that launchers run on nodes. `node_program` sends these scripts as text; the scripts import only
`penstock.ownership`.
"""

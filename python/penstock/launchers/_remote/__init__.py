# SPDX-License-Identifier: Apache-2.0
"""Scripts that launchers run on nodes, sent as text by `node_program`; of Penstock they import only
`penstock.ownership`.
"""

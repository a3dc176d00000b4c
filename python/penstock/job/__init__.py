# SPDX-License-Identifier: Apache-2.0
"""Job: a job file (`spec`), its run on a cluster step by step (`runner`, `commands`, `node_loss`), the same job over several
paths (`compare_paths`), and its hand-over to a batch system (`export`, `submit`).
"""

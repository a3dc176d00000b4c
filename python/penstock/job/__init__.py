# SPDX-License-Identifier: Apache-2.0
"""Job: run a job file on a cluster, or submit it to a batch system.

`spec` parses the job file. `run_steps`, `step_commands` and `node_loss` run it step by step. `compare_paths` runs the
same job over several paths. `export` and `submit` pass it to batch systems.
"""

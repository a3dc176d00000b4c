# SPDX-License-Identifier: Apache-2.0
"""Runs a job file on a cluster, or submits it to a batch system.

`spec` parses the job file. `run_steps`, `step_commands` and `node_loss_recovery` run the job step by step. `compare_paths` runs
the same job over several paths. `export` and `submit` pass the job to batch systems.
"""

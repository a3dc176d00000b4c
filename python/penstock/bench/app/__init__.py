# SPDX-License-Identifier: Apache-2.0
"""Scaling of applications: runs any MPI, srun or torchrun command at several sizes, natively and in containers.

Starts no process itself: `penstock.cluster` runs the commands. `penstock.report.scaling_page` draws the results.
"""

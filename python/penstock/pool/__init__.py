# SPDX-License-Identifier: Apache-2.0
"""Pool: the nodes' disks as one store for the duration of a job.

`lifecycle` starts, checks and takes down a pool. `context` passes the pool to the ranks. `exec` runs object
operations on a node of the pool. `engine_registry` loads the engine, which provides the pool's file system.
"""

# SPDX-License-Identifier: Apache-2.0
"""Pool: the nodes' disks as one store for the duration of a job.

`lifecycle` starts, checks and takes down a pool. `rank_env` passes it to the ranks. `object_operations` runs object
operations on one of its nodes. `engine_plugins` loads the engine, which provides its file system.
"""

# SPDX-License-Identifier: Apache-2.0
"""Pool: the nodes' disks as one store for the duration of a job.

`lifecycle` brings it up, checks it and takes it down; `context` passes it to the ranks; `rpc` runs object operations on
one of its nodes; `engine_plugins` loads the file system behind it.
"""

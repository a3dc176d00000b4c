# SPDX-License-Identifier: Apache-2.0
"""Built-in engines: plug-ins that store a pool's objects in a file system, usually a file system across the nodes' own
disks.
"""

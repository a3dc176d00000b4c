# SPDX-License-Identifier: Apache-2.0
"""Engines that come with Penstock: plug-ins for file systems over the nodes' own disks, which store a pool's objects."""

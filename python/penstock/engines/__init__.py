# SPDX-License-Identifier: Apache-2.0
"""Engines that come with Penstock: file systems over the nodes' own disks that store a pool's objects. Each is a
plug-in.
"""

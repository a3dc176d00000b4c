# SPDX-License-Identifier: Apache-2.0
"""Engines that come with Penstock: what must be brought up, and then holds objects on the nodes' own disks. Each is a plug-in."""

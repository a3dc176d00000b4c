# SPDX-License-Identifier: Apache-2.0
"""Launchers that come with Penstock: they start commands on nodes. Each is a plug-in like any other."""

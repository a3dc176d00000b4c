# SPDX-License-Identifier: Apache-2.0
"""Bases that several engines share: the client of the node agents, object folders, WebHDFS, Hadoop jars, ssh keys."""

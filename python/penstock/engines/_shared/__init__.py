# SPDX-License-Identifier: Apache-2.0
"""Code that several engines share: the client of the node agents, object folders, WebHDFS, Hadoop jars, ssh keys."""

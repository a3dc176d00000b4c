# SPDX-License-Identifier: Apache-2.0
"""Built-in launchers, which start commands on nodes. These launchers are loaded as plug-ins, like launchers of other
packages.
"""

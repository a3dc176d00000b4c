# SPDX-License-Identifier: Apache-2.0
"""Code that several launchers share: base classes, supervision of child processes, node lists of batch systems."""

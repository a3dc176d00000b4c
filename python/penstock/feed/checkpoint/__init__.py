# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on any store, through torch's Distributed Checkpoint. Public through `penstock.torch`."""

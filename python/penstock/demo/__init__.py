# SPDX-License-Identifier: Apache-2.0
"""The demo: four storage paths, one training, one report. Owns the order of events and the sizes; every step of it is a
public part of Penstock, called as a user would. Prints nothing and decides no exit code.
"""

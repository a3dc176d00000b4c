# SPDX-License-Identifier: Apache-2.0
"""SEG-Y files as arrays: names of header fields, and the geometry of a survey. The core reads the bytes."""

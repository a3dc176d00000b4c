# SPDX-License-Identifier: Apache-2.0
"""SEG-Y: names of header fields, the geometry of a survey, and files as arrays. The bytes are read by the core."""

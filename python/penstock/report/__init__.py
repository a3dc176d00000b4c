# SPDX-License-Identifier: Apache-2.0
"""Reports: terminal tables and one HTML file that opens offline. Move no data, run nothing."""

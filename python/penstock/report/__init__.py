# SPDX-License-Identifier: Apache-2.0
"""Results in, words and pictures out: terminal tables and one HTML file that opens offline. Moves no data, runs nothing."""

# SPDX-License-Identifier: Apache-2.0
"""Reports: terminal tables and one HTML file that opens offline. They transfer no data and run no job."""

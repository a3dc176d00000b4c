# SPDX-License-Identifier: Apache-2.0
"""Reports: terminal tables, and HTML files that open offline. Reports are made from stored results and run no job."""

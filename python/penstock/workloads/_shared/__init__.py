# SPDX-License-Identifier: Apache-2.0
"""Base classes that several workloads share. This package is not a workload itself."""

# SPDX-License-Identifier: Apache-2.0
"""Built-in workloads, which consume samples. Each workload is a plug-in with an entry point. Workloads do not import
each other.
"""

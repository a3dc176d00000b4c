# SPDX-License-Identifier: Apache-2.0
"""Built-in workloads, which consume samples. Each is a plug-in with an entry point. They do not import each other."""

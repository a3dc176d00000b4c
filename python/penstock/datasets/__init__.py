# SPDX-License-Identifier: Apache-2.0
"""Generators of synthetic datasets that compress, decode and train like the real data. They do not depend on a
store.
"""

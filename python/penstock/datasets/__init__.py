# SPDX-License-Identifier: Apache-2.0
"""Generators of synthetic datasets that compress, decode and train like the real data. The generators do not depend on
a store.
"""

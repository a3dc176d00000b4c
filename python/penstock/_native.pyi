# SPDX-License-Identifier: Apache-2.0
# The compiled core, as Python sees it. Checked by mypy.stubtest.

__all__ = ["__version__"]

__version__: str

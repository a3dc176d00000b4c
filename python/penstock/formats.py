# SPDX-License-Identifier: Apache-2.0
"""Public alias of `penstock.feed.formats`, for `penstock.open(url, format=...)`."""

from penstock.feed.formats import *  # noqa: F403 - the names in its `__all__`
from penstock.feed.formats import __all__ as __all__

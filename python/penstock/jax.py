# SPDX-License-Identifier: Apache-2.0
"""Public alias of `penstock.feed.jax`: `from penstock.jax import Loader`."""

from penstock.extras import require

require("penstock.jax", "jax")

from penstock.feed.jax import Loader  # noqa: E402 - jax is there now

__all__ = ["Loader"]

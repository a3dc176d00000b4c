# SPDX-License-Identifier: Apache-2.0
"""`from penstock.jax import Loader`: the public name of `penstock.feed.jax`."""

from penstock.extras import require

require("penstock.jax", "jax")

from penstock.feed.jax import Loader  # noqa: E402 - jax is there now

__all__ = ["Loader"]

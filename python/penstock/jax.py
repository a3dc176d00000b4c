# SPDX-License-Identifier: Apache-2.0
"""`from penstock.jax import Loader`: the public name of `penstock.feed.jax`."""

from penstock.feed.jax import Loader

__all__ = ["Loader"]

# SPDX-License-Identifier: Apache-2.0
"""`from penstock.torch import Loader`: the public name of `penstock.feed.torch`, so that it can be imported too."""

from penstock.feed.torch import Loader

__all__ = ["Loader"]

# SPDX-License-Identifier: Apache-2.0
"""`penstock.tf.dataset(ds, batch=...)`: the public name of `penstock.feed.tensorflow`."""

from penstock.feed.tensorflow import dataset

__all__ = ["dataset"]

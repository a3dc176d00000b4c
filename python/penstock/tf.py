# SPDX-License-Identifier: Apache-2.0
"""`penstock.tf.dataset(ds, batch=...)`: the public name of `penstock.feed.tensorflow`."""

from penstock.extras import require

require("penstock.tf", "tensorflow")

from penstock.feed.tensorflow import dataset  # noqa: E402 - tensorflow is there now

__all__ = ["dataset"]

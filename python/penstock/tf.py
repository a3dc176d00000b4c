# SPDX-License-Identifier: Apache-2.0
"""Public alias of `penstock.feed.tensorflow`: `penstock.tf.dataset(ds, batch=...)`."""

from penstock.extras import require

require("penstock.tf", "tensorflow")

from penstock.feed.tensorflow import dataset  # noqa: E402 - tensorflow is there now

__all__ = ["dataset"]

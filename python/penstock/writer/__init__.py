# SPDX-License-Identifier: Apache-2.0
"""Writer: stores samples as shards of TFRecord, tar or Parquet in any store, and converts datasets between formats.

    written = penstock.write(samples, "s3://bucket/train/", format="tar")

`write` stores samples that are given as dicts. `convert` copies a dataset that `penstock.open` reads.
"""

from __future__ import annotations

from penstock.writer.convert import Conversion, convert, plan_conversion
from penstock.writer.run import Written, write
from penstock.writer.settings import FORMATS

__all__ = ["FORMATS", "Conversion", "Written", "convert", "plan_conversion", "write"]

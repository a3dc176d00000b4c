# SPDX-License-Identifier: Apache-2.0
"""Writes the same 10 rows as Parquet with several settings to one archive, for tests/it/parquet.rs. Needs pyarrow."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from archive import write_archive

members: dict[str, bytes] = {}
n = range(10)
columns = {
    "i8": pa.array([i - 5 for i in n], pa.int8()),
    "u16": pa.array([i * 1000 for i in n], pa.uint16()),
    "i32": pa.array([i - 5 for i in n], pa.int32()),
    "i64": pa.array([i << 40 for i in n], pa.int64()),
    "f16": pa.array([float(i) for i in n], pa.float16()),
    "f32": pa.array([i / 4 for i in n], pa.float32()),
    "f64": pa.array([i / 8 for i in n], pa.float64()),
    "bool": pa.array([i % 3 == 0 for i in n]),
    "text": pa.array([None if i == 4 else f"row {i}" for i in n]),
    "blob": pa.array([bytes([i]) * i for i in n]),
    "fixed": pa.array([bytes([i] * 3) for i in n], pa.binary(3)),
    "tokens": pa.array([None if i == 3 else list(range(i)) for i in n], pa.list_(pa.int32())),
    "words": pa.array([[f"w{j}" for j in range(i % 3)] for i in n], pa.list_(pa.string())),
    "square": pa.array([[i, i + 1, i + 2] for i in n], pa.list_(pa.float32(), 3)),
    "image": pa.array([{"bytes": bytes([255, i]), "path": None} for i in n]),
    "u32": pa.array(list(n), pa.uint32()),
    "holes": pa.array([None if i == 7 else i for i in n], pa.int64()),
    "gaps": pa.array([[1, None]] + [[1]] * 9, pa.list_(pa.int32())),
    "nested": pa.array([[[i]] for i in n], pa.list_(pa.list_(pa.int32()))),
    "price": pa.array(list(n), pa.decimal128(5, 2)),
}
table = pa.table(columns)
for name, options in {
    "plain": {"compression": "none", "use_dictionary": False},
    "snappy": {"compression": "snappy", "row_group_size": 4},
    "zstd": {"compression": "zstd", "row_group_size": 3, "data_page_version": "2.0"},
    "gzip": {"compression": "gzip", "data_page_size": 1, "write_batch_size": 2, "write_page_index": True},
    "lz4": {"compression": "lz4", "use_dictionary": False, "row_group_size": 7},
    "brotli": {"compression": "brotli"},
}.items():
    raw = io.BytesIO()
    pq.write_table(table, raw, **options)
    members[f"{name}.parquet"] = raw.getvalue()

# Unusual columns: nulls at every depth of a list of structs, nested lists, unsigned integers, two columns with equal
# names, and values that share prefixes.
odd = {
    "o": pa.array(
        [[{"x": 1}, None, {"x": 3}], None, [], [{"x": None}], [{"x": 5}]], pa.list_(pa.struct([("x", pa.int64())]))
    ),
    "s.a": pa.array([1, 2, 3, 4, 5], pa.int32()),
    "s": pa.array([{"a": i} for i in range(5)], pa.struct([("a", pa.int32())])),
    "u32": pa.array([2**32 - 1 - i for i in range(5)], pa.uint32()),
    "u64": pa.array([2**64 - 1 - i for i in range(5)], pa.uint64()),
    "deep": pa.array([[[[i]]] for i in range(5)], pa.list_(pa.list_(pa.list_(pa.float32())))),
    "prefixed": pa.array([f"the same beginning {i}" for i in range(5)]),
    "binary": pa.array([b"12345678"] * 5),
}
for name, version in {"odd1": "1.0", "odd2": "2.0"}.items():
    raw = io.BytesIO()
    encoding = {"prefixed": "DELTA_BYTE_ARRAY", "binary": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(pa.table(odd), raw, use_dictionary=False, column_encoding=encoding, data_page_version=version)
    members[f"{name}.parquet"] = raw.getvalue()

write_archive("parquet.tar.gz", members)

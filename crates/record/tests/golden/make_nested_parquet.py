# SPDX-License-Identifier: Apache-2.0
"""Writes nested columns as Parquet with several settings, and their rows as JSON, to one archive. Needs pyarrow."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from archive import write_archive

n = range(12)
f32, i64 = pa.float32(), pa.int64()
# Column: type, and rows. Struct fields are delivered as separate columns.
columns = {
    "boxes": (pa.list_(pa.list_(f32)), [None if i == 4 else [[i, j, 2.5, -1] for j in range(i % 3)] for i in n]),
    "pages": (
        pa.list_(pa.list_(pa.list_(f32, 4))),
        [[[[i, j, k, 0] for k in range(j)] for j in range(i % 4)] for i in n],
    ),
    "array2d": (pa.list_(pa.list_(f32, 3), 2), [[[i, 1, 2], [3, 4, i]] for i in n]),
    "captions": (pa.list_(pa.list_(pa.string())), [[["x" * j for j in range(k)] for k in range(i % 3)] for i in n]),
    "deep": (pa.list_(pa.list_(pa.list_(pa.list_(pa.int16())))), [[[[[i]] * (i % 3)], []] for i in n]),
    "large": (pa.large_list(pa.large_list(pa.large_string())), [[[str(i)], []] if i % 2 else None for i in n]),
    "flags": (pa.list_(pa.list_(pa.uint8())), [[[i % 2] * (i % 5)] for i in n]),
    "s": (pa.struct([("x", pa.list_(pa.list_(i64)))]), [{"x": [[i << 40], []]} if i else None for i in n]),
    "people": (
        pa.list_(pa.struct([("name", pa.string()), ("ids", pa.list_(i64))])),
        [[{"name": f"p{j}", "ids": list(range(j))} for j in range(i % 3)] for i in n],
    ),
    "required": (
        pa.list_(pa.field("item", pa.list_(pa.field("item", i64, nullable=False)), nullable=False)),
        [[[i, i], [], [i]][: i % 4] for i in n],
    ),
}
rows = {name: values for name, (_, values) in columns.items() if name not in ("s", "people")}
rows["s.x"] = [None if row is None else row["x"] for row in columns["s"][1]]
for field in ("name", "ids"):
    rows[f"people.{field}"] = [[one[field] for one in row] for row in columns["people"][1]]
members = {"rows.json": json.dumps(rows).encode()}
table = pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})
for name, options in {
    "snappy": {"compression": "snappy", "row_group_size": 5},
    "pages": {"compression": "none", "data_page_size": 1, "write_batch_size": 2, "use_dictionary": False},
    "plain2": {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": False},
}.items():
    raw = io.BytesIO()
    pq.write_table(table, raw, **options)
    members[f"{name}.parquet"] = raw.getvalue()

# Files of one dataset whose schema evolves: columns that come and go, wider types, another order, dictionaries.
old = {"id": pa.array([0, 1], pa.int32()), "score": pa.array([0.5, 1.5], f32), "label": pa.array(["a", "b"])}
new = {
    "label": pa.array(["c", None]).dictionary_encode(),
    "tags": pa.array([[7], None], pa.list_(i64)),
    "extra": pa.array([5, None], i64),
    "score": pa.array([2.5, 3.5], pa.float64()),
    "id": pa.array([2, 3], i64),
}
for name, table in {"a": pa.table(old), "b": pa.table(new)}.items():
    raw = io.BytesIO()
    pq.write_table(table, raw, use_dictionary=name == "b")
    members[f"evolved/{name}.parquet"] = raw.getvalue()

write_archive("nested_parquet.tar.gz", members)

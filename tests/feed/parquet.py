# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet files by hand: columns of required values in plain, uncompressed pages; or one column of given pages."""

from __future__ import annotations

import io
import struct

INT32, INT64, BYTES, FIXED = 1, 2, 6, 7
GZIP = 2
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, DELTA_LENGTHS, DELTA_STRINGS, DICTIONARY = 0, 6, 7, 8


def _varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _struct(*fields):
    """Thrift's compact encoding of (number, kind, value) fields in ascending order."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | {"i32": 5, "i64": 6, "bytes": 8, "list": 9, "struct": 12}[kind]])
        last = number
        if kind in ("i32", "i64"):
            out += _varint(value << 1 if value >= 0 else -value * 2 - 1)
        elif kind == "bytes":
            out += _varint(len(value)) + value
        elif kind == "list":
            of, items = value
            out += bytes([min(len(items), 15) << 4 | {"i32": 5, "bytes": 8, "struct": 12}[of]])
            out += _varint(len(items)) if len(items) >= 15 else b""
            out += b"".join({"i32": lambda i: _varint(i << 1), "bytes": lambda b: _varint(len(b)) + b}.get(of, bytes)(i)
                            for i in items)  # fmt: skip
        else:
            out += value
    return out + b"\x00"


def _page(kind, values):
    if kind == INT64:
        return struct.pack(f"<{len(values)}q", *values)
    return b"".join((struct.pack("<I", len(value)) if kind == BYTES else b"") + value for value in values)


def parquet_bytes(group=3, **columns):
    """A file with row groups of `group` rows; the values of a column determine its type."""
    out = io.BytesIO()
    out.write(b"PAR1")
    kinds = {
        name: INT64 if values and isinstance(values[0], int) else FIXED if isinstance(values, tuple) else BYTES
        for name, values in columns.items()
    }
    rows = len(next(iter(columns.values())))
    groups = []
    for start in range(0, rows, group):
        chunks, size = [], 0
        for name, values in columns.items():
            some = values[start : start + group]
            data = _page(kinds[name], some)
            about = _struct((1, "i32", len(some)), (2, "i32", 0), (3, "i32", 3), (4, "i32", 3))
            header = _struct((1, "i32", 0), (2, "i32", len(data)), (3, "i32", len(data)), (5, "struct", about))
            at = out.tell()
            out.write(header + data)
            length = len(header) + len(data)
            size += length
            metadata = _struct(
                (1, "i32", kinds[name]),
                (2, "list", ("i32", [0])),
                (3, "list", ("bytes", [name.encode()])),
                (4, "i32", 0),
                (5, "i64", len(some)),
                (6, "i64", length),
                (7, "i64", length),
                (9, "i64", at),
            )
            chunks.append(_struct((2, "i64", at), (3, "struct", metadata)))
        count = min(group, rows - start)
        groups.append(_struct((1, "list", ("struct", chunks)), (2, "i64", size), (3, "i64", count)))
    schema = [_struct((4, "bytes", b"schema"), (5, "i32", len(columns)))]
    for name, values in columns.items():
        long = [(2, "i32", len(values[0]))] if kinds[name] == FIXED else []
        schema.append(_struct((1, "i32", kinds[name]), *long, (3, "i32", 0), (4, "bytes", name.encode())))
    footer = _struct((1, "i32", 1), (2, "list", ("struct", schema)), (3, "i64", rows), (4, "list", ("struct", groups)))
    out.write(footer + struct.pack("<I", len(footer)) + b"PAR1")
    return out.getvalue()


def page(body, values, *, size=None, encoding=PLAIN, levels=3, dictionary=False):
    """A page with its header; `size` is the decompressed size of `body` that the header states."""
    about = [(1, "i32", values), (2, "i32", encoding)]
    header = _struct(
        (1, "i32", 2 if dictionary else 0),
        (2, "i32", len(body) if size is None else size),
        (3, "i32", len(body)),
        (7, "struct", _struct(*about))
        if dictionary
        else (5, "struct", _struct(*about, (3, "i32", levels), (4, "i32", levels))),
    )
    return header + body


def one_column(pages, *, kind, rows, values=None, codec=0, repetition=REQUIRED, encodings=(PLAIN,), named="x"):
    """A file of one column chunk of these pages; its footer has the given values."""
    content = b"".join(pages)
    metadata = _struct(
        (1, "i32", kind),
        (2, "list", ("i32", list(encodings))),
        (3, "list", ("bytes", [named.encode()])),
        (4, "i32", codec),
        (5, "i64", rows if values is None else values),
        (6, "i64", len(content)),
        (7, "i64", len(content)),
        (9, "i64", 4),
    )
    chunk = _struct((2, "i64", 4), (3, "struct", metadata))
    group = _struct((1, "list", ("struct", [chunk])), (2, "i64", len(content)), (3, "i64", rows))
    column = _struct((1, "i32", kind), (3, "i32", repetition), (4, "bytes", named.encode()))
    schema = [_struct((4, "bytes", b"schema"), (5, "i32", 1)), column]
    footer = _struct((1, "i32", 1), (2, "list", ("struct", schema)), (3, "i64", rows), (4, "list", ("struct", [group])))
    return b"PAR1" + content + footer + struct.pack("<I", len(footer)) + b"PAR1"


def run(count, value):
    """One run of the RLE hybrid encoding, for values that fit in one byte."""
    return _varint(count << 1) + bytes([value])

# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet files of nested columns by hand, by the record shredding of the Dremel paper. Every node is optional."""

from __future__ import annotations

import struct
import tarfile
from itertools import groupby
from pathlib import Path

from .parquet import BYTES, INT64, OPTIONAL, REPEATED, _page, _struct, run

# Columns of pyarrow with several settings, and their rows as JSON; see make_nested_parquet.py beside the archive.
GOLDEN = Path(__file__).parents[2] / "crates/record/tests/golden/nested_parquet.tar.gz"

LIST, UTF8 = 3, 0
TYPES = {"int64": INT64, "bytes": BYTES, "text": BYTES}


def extract_golden(folder):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def nested_bytes(schema, rows, *, group=4):
    """A file of `rows`, which are dicts. A type is "int64", "bytes", "text", a list of one type, or a dict of types."""
    out, groups = bytearray(b"PAR1"), []
    for start in range(0, len(rows), group):
        some = rows[start : start + group]
        levels = {path: [] for path, *_ in _leaves(schema)}
        for row in some:
            for name, kind in schema.items():
                _shred(kind, row.get(name), 0, 0, 0, (name,), levels)
        chunks = []
        for path, kind, deepest, repeated in _leaves(schema):
            entries = levels[path]
            body = _levels([entry[0] for entry in entries]) if repeated else b""
            body += _levels([entry[1] for entry in entries])
            body += _page(TYPES[kind], [entry[2] for entry in entries if entry[1] == deepest])
            about = _struct((1, "i32", len(entries)), (2, "i32", 0), (3, "i32", 3), (4, "i32", 3))
            page = _struct((1, "i32", 0), (2, "i32", len(body)), (3, "i32", len(body)), (5, "struct", about)) + body
            metadata = _struct(
                (1, "i32", TYPES[kind]),
                (2, "list", ("i32", [0, 3])),
                (3, "list", ("bytes", [name.encode() for name in path])),
                (4, "i32", 0),
                (5, "i64", len(entries)),
                (6, "i64", len(page)),
                (7, "i64", len(page)),
                (9, "i64", len(out)),
            )
            chunks.append(_struct((2, "i64", len(out)), (3, "struct", metadata)))
            out += page
        groups.append(_struct((1, "list", ("struct", chunks)), (2, "i64", 0), (3, "i64", len(some))))
    nodes = [_struct((4, "bytes", b"schema"), (5, "i32", len(schema)))]
    nodes += [node for name, kind in schema.items() for node in _nodes(name, kind)]
    footer = _struct(
        (1, "i32", 1), (2, "list", ("struct", nodes)), (3, "i64", len(rows)), (4, "list", ("struct", groups))
    )
    return bytes(out) + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _leaves(schema, path=(), deepest=0, repeated=0):
    """(path, type, definition level of a value, repetition level) of each leaf."""
    for name, kind in schema.items():
        here, level = (*path, name), deepest + 1
        if isinstance(kind, list):
            yield from _leaves({"element": kind[0]}, (*here, "list"), level + 1, repeated + 1)
        elif isinstance(kind, dict):
            yield from _leaves(kind, here, level, repeated)
        else:
            yield here, kind, level, repeated


def _shred(kind, value, repetition, definition, depth, path, levels):
    """Append (repetition, definition, value) to each leaf of a node."""
    if value is None or value == []:
        definition += value is not None
        for leaf in levels:
            if leaf[: len(path)] == path:
                levels[leaf].append((repetition, definition, None))
    elif isinstance(kind, list):
        for at, item in enumerate(value):
            first = depth + 1 if at else repetition
            _shred(kind[0], item, first, definition + 2, depth + 1, (*path, "list", "element"), levels)
    elif isinstance(kind, dict):
        for name, of in kind.items():
            _shred(of, value[name], repetition, definition + 1, depth, (*path, name), levels)
    else:
        levels[path].append((repetition, definition + 1, value))


def _levels(values):
    encoded = b"".join(run(len(list(same)), value) for value, same in groupby(values))
    return struct.pack("<I", len(encoded)) + encoded


def _nodes(name, kind, repetition=OPTIONAL):
    about = [(3, "i32", repetition), (4, "bytes", name.encode())]
    if isinstance(kind, list):
        repeated = _struct((3, "i32", REPEATED), (4, "bytes", b"list"), (5, "i32", 1))
        return [_struct(*about, (5, "i32", 1), (6, "i32", LIST)), repeated, *_nodes("element", kind[0])]
    if isinstance(kind, dict):
        below = [node for inner, of in kind.items() for node in _nodes(inner, of)]
        return [_struct(*about, (5, "i32", len(kind))), *below]
    text = [(6, "i32", UTF8)] if kind == "text" else []
    return [_struct((1, "i32", TYPES[kind]), *about, *text)]

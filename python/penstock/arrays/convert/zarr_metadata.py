# SPDX-License-Identifier: Apache-2.0
"""Builds metadata documents of Zarr version 3. zarr-python and xarray can read the arrays without a plug-in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CODECS", "array_document", "group_document", "parse_codec"]

CODECS = {
    "none": [],
    "lz4": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5}}],
    "zstd": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}],
    "blosc-zstd": [{"name": "blosc", "configuration": {"cname": "zstd", "clevel": 5}}],
    "gzip": [{"name": "gzip", "configuration": {"level": 5}}],
}
"""Zarr's codecs by Penstock's names. `lz4` and `blosc-zstd` are Blosc with a byte shuffle. NAME:LEVEL sets the
level.
"""

Document = dict[str, Any]


def parse_codec(text: str, itemsize: int) -> list[Document]:
    """Parse the name of a codec, such as `lz4` or `zstd:9`. Returns the codecs that follow `bytes` in Zarr's metadata.

    Raises:
        ConfigError: The codec does not exist, or does not have this level.
    """
    name, _, level = text.partition(":")
    if name not in CODECS:
        raise ConfigError(f"codec: `{name}` is not one of {', '.join(CODECS)}", where="codec")
    most = {"lz4": 9, "blosc-zstd": 9, "zstd": 22, "gzip": 9, "none": 0}[name]
    if level and not (level.isdecimal() and int(level) <= most):
        raise ConfigError(f"codec: `{level}` is not a valid level for {name} (0 to {most})", where="codec")
    codecs: list[Document] = json.loads(json.dumps(CODECS[name]))
    for codec in codecs:
        configuration = codec["configuration"]
        if codec["name"] == "blosc":
            configuration |= {
                "shuffle": "shuffle" if itemsize > 1 else "noshuffle",
                "typesize": itemsize,
                "blocksize": 0,
            }
        if level:
            configuration["clevel" if codec["name"] == "blosc" else "level"] = int(level)
    return codecs


def array_document(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    dims: Sequence[str],
    *,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    codecs: Sequence[Document] = (),
    serializer: Document | None = None,
    fill: Any = 0,
    attrs: Mapping[str, Any] | None = None,
) -> Document:
    """Return the metadata of an array. `codecs` follow `bytes` or the `serializer`. In an array with shards, `codecs`
    encode the chunks.
    """
    plain = {"name": "bytes", **({"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {})}
    inner: list[Document] = [serializer or plain, *codecs]
    outer = inner
    if shards is not None:
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        outer = [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": list(chunks), "codecs": inner, "index_codecs": index, "index_location": "end",
                },
            }
        ]  # fmt: skip
    is_nan = isinstance(fill, float) and np.isnan(fill)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [int(side) for side in shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [int(side) for side in shards or chunks]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if is_nan else fill,
        "codecs": outer,
        "attributes": dict(attrs or {}),
        "dimension_names": list(dims),
        "storage_transformers": [],
    }


def group_document(arrays: Mapping[str, Document], attrs: Mapping[str, Any]) -> Document:
    """Return the metadata of a group. It includes the metadata of the arrays, so that a reader needs one request to
    open the group.
    """
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(attrs),
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": dict(arrays)},
    }

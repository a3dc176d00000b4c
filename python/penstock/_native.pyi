# SPDX-License-Identifier: Apache-2.0
# The compiled core, as Python sees it. Checked by mypy.stubtest.

from collections.abc import Mapping
from typing import Literal

from typing_extensions import Buffer

__all__ = ["__profile__", "__version__", "crc32c", "decode_tfrecord", "encode_tfrecord"]

__profile__: str
__version__: str

def encode_tfrecord(
    features: Mapping[str, bytes | list[bytes] | list[float] | list[int] | Buffer],
    *,
    codec: Literal["none", "gzip", "zstd", "lz4"] = "none",
    level: int | None = None,
) -> bytes:
    """One tf.Example of `features`, in their order, in one TFRecord frame, compressed. The same arguments give the same bytes.

    Args:
        features: `bytes` and `list[bytes]` become a bytes_list, `list[float]` and buffers of float32 a float_list,
            `list[int]` an int64_list.
        level: gzip 0 to 12 (6), zstd its own range (3).
    Raises:
        ConfigError: A value, codec or level that cannot be.
    """

def decode_tfrecord(
    data: bytes, *, codec: Literal["none", "gzip", "zstd", "lz4"] | None = None
) -> list[dict[str, bytes | list[bytes] | list[float] | list[int]]]:
    """The examples of a TFRecord object, for looking into one: every checksum is checked, at most 1 GiB is inflated.

    Args:
        codec: Told by the first bytes when None.
    Raises:
        Corrupt: The data are no TFRecord of tf.Examples, damaged or truncated.
    """

def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`."""

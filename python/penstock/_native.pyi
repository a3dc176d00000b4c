# SPDX-License-Identifier: Apache-2.0
# The compiled core, as Python sees it. Checked by mypy.stubtest.

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, final

from typing_extensions import Buffer

__all__ = ["Emulator", "__profile__", "__version__", "crc32c", "decode_tfrecord", "encode_tfrecord"]

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

@final
class Emulator:
    """A folder as an S3 endpoint, on threads of its own, until `stop` or the last reference goes."""

    def __new__(
        cls,
        folder: str | Path,
        tier_toml_text: str,
        tier: str = "none",
        bind: str = "127.0.0.1:0",
        scale: float = 1.0,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> Emulator: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def tier(self) -> str: ...
    @property
    def scale(self) -> float: ...
    def stats(self) -> dict[str, int]: ...
    def stop(self) -> None: ...

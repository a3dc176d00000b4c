# SPDX-License-Identifier: Apache-2.0
"""Drivers of other loaders for `penstock bench feed --against`: one file each, run in separate environments.

Contains the list of peers and the formats that each can read. The drivers are run by path in foreign interpreters
(`runner.py`). Therefore, they do not import penstock, and penstock does not import them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DRIVE", "PEERS", "Peer"]

RUNNER = Path(__file__).with_name("runner.py")
"""Script that the interpreter of a participant runs."""


@dataclass(frozen=True)
class Peer:
    """One way to read a dataset: a loader with its options.

    Attributes:
        driver: File name of the driver in this folder, without `.py`.
        environment: Folder of the peer's interpreter below `--peers`; empty for the interpreter of Penstock.
        module: Module that this interpreter must be able to import.
        formats, codecs, schemes: Kinds of data that the peer can read. For other data, the peer is not run.
        options: Options passed to the driver in addition to the task.
        is_roofline: True if the peer measures a limit and returns no samples, so that its bytes cannot be compared.
    """

    driver: str
    environment: str
    module: str
    formats: frozenset[str]
    codecs: frozenset[str] = frozenset({"none"})
    schemes: frozenset[str] = frozenset({"file"})
    options: dict[str, Any] = field(default_factory=dict)
    is_roofline: bool = False


_RECORDS, _TAR, _OBJECTS = frozenset({"tfrecord"}), frozenset({"tar"}), frozenset({"fixed"})
_GZIP, _BOTH = frozenset({"gzip"}), frozenset({"gzip", "none"})
_FILE, _S3 = frozenset({"file"}), frozenset({"s3"})

PEERS: dict[str, Peer] = {
    "tfdata": Peer("tfdata", "tfdata", "tensorflow", _RECORDS, _BOTH),
    "libdeflate": Peer("libdeflate", "libdeflate", "deflate", _RECORDS, _GZIP),
    "bare": Peer("libdeflate_roofline", "libdeflate", "deflate", _RECORDS, _GZIP, is_roofline=True),
    "planes": Peer(
        "penstock_loader", "", "penstock", _RECORDS, _GZIP, schemes=_FILE | _S3, options={"transcode": "always"}
    ),
    "tfrecord": Peer("tfrecord", "tfrecord", "tfrecord", _RECORDS, _BOTH),
    "grain": Peer("grain", "grain", "grain", _RECORDS),
    "grain-arrayrecord": Peer("grain_arrayrecord", "grain", "array_record", _RECORDS),
    "webdataset": Peer("webdataset", "webdataset", "webdataset", _TAR),
    "litdata": Peer("litdata", "litdata", "litdata", _TAR),
    "mosaicml": Peer("mosaicml", "mosaicml", "streaming", _TAR),
    "spdl": Peer("spdl", "spdl", "spdl.io", _TAR),
    "dali": Peer("dali", "dali", "nvidia.dali", _TAR),
    "ffcv": Peer("ffcv", "ffcv", "ffcv", _TAR),
    "s3torchconnector": Peer("s3torchconnector", "s3torchconnector", "s3torchconnector", _OBJECTS, schemes=_S3),
    "s3torchconnector-1": Peer(
        "s3torchconnector",
        "s3torchconnector",
        "s3torchconnector",
        _OBJECTS,
        schemes=_S3,
        options={"workers": False},
    ),
    "obstore": Peer("obstore", "obstore", "obstore", _OBJECTS, schemes=_S3),
    "s3dlio": Peer("s3dlio", "s3dlio", "s3dlio", _OBJECTS, schemes=_S3),
}
"""Peers by the names that --against accepts."""

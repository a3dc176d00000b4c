# SPDX-License-Identifier: Apache-2.0
"""Other loaders, as `penstock bench feed --against` runs them: one driver file each, in an environment of its own.

Owns which there are and what each can read. The drivers are run by path in foreign interpreters (`drive.py` says how), so
nothing of penstock may be imported there, and nothing of them here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DRIVE", "PEERS", "Peer"]

DRIVE = Path(__file__).with_name("drive.py")
"""Script that a contestant's interpreter runs."""


@dataclass(frozen=True)
class Peer:
    """One way to read.

    Attributes:
        driver: Its file here, without `.py`.
        environment: Folder of its interpreter below `--peers`; empty for our own.
        module: What that interpreter must be able to import.
        formats, codecs, schemes: What it reads; other data are reported as unsupported, and not run.
        options: Options passed to the driver besides the task.
        is_roofline: It returns no samples: it measures a limit, and its bytes are not compared.
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
    "bare": Peer("bare", "libdeflate", "deflate", _RECORDS, _GZIP, is_roofline=True),
    "planes": Peer("ours", "", "penstock", _RECORDS, _GZIP, schemes=_FILE | _S3, options={"transcode": "always"}),
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
"""By the names that --against takes."""

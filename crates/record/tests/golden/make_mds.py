# SPDX-License-Identifier: Apache-2.0
"""Writes shards with MosaicML's own writer for tests/it/mds.rs.

Needs mosaicml-streaming 0.13 (numpy < 2.2), but not torch, which that package depends on.
"""

import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path

# The package imports torch and the clients of all clouds, which its writer does not need: replace them with stubs.
root = Path(importlib.util.find_spec("streaming").submodule_search_locations[0])
for name in ["", ".base", ".base.format", ".base.format.base", ".base.format.mds", ".base.storage"]:
    module = types.ModuleType(f"streaming{name}")
    module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules[f"streaming{name}"] = module
sys.modules["torch"], sys.modules["torch.distributed"] = (
    types.ModuleType("torch"),
    types.ModuleType("torch.distributed"),
)
sys.modules["streaming.base.util"] = types.ModuleType("streaming.base.util")
sys.modules["streaming.base.util"].bytes_to_int = int
upload = types.ModuleType("streaming.base.storage.upload")
sys.modules["streaming.base.storage.upload"] = upload


class CloudUploader:
    """Stub of the uploader, for a local output folder."""

    def __init__(self, out: str) -> None:
        self.local, self.remote = out, None

    @classmethod
    def get(cls, out: str, *_: object, **__: object) -> "CloudUploader":
        return cls(out)

    def upload_file(self, _: str) -> None:
        """Does nothing: the file is already in the output folder."""


upload.CloudUploader = CloudUploader

import numpy as np  # noqa: E402
from archive import write_archive  # noqa: E402
from PIL import Image  # noqa: E402
from streaming.base.format.mds.writer import MDSWriter  # noqa: E402

members: dict[str, bytes] = {}
columns = {
    "bytes": "bytes",
    "count": "int",
    "f32": "float32",
    "u16": "uint16",
    "text": "str",
    "free": "ndarray",
    "typed": "ndarray:float32",
    "fixed": "ndarray:int16:2,3",
    "info": "json",
    "picture": "png",
    "pil": "pil",
}


def sample(at: int) -> dict[str, object]:
    return {
        "bytes": bytes([at]) * at,
        "count": at - 3,
        "f32": np.float32(at / 4),
        "u16": np.uint16(at * 1000),
        "text": f"sample {at} é",
        "free": np.arange(at + 1, dtype=np.int64) - 1,
        "typed": np.full((at + 1, 300), at, np.float32)[:, : 2 + at],
        "fixed": np.arange(6, dtype=np.int16).reshape(2, 3) * at,
        "info": {"at": at},
        "picture": Image.new("RGB", (4, 3), (at, 2, 3)),
        "pil": Image.new("L", (5, 2), at),
    }


for compression in [None, "zstd:3", "gz"]:
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(
            out=folder, columns=columns, compression=compression, hashes=["xxh64"], size_limit=2000
        ) as writer:
            for at in range(7):
                writer.write(sample(at))
        for path in sorted(Path(folder).iterdir()):
            label = (compression or "plain").partition(":")[0]
            members[f"{label}/{path.name}"] = path.read_bytes()
for at in range(7):
    values = sample(at)
    members[f"want/{at}"] = json.dumps(
        {
            "bytes": values["bytes"].hex(),
            "free": values["free"].tobytes().hex(),
            "typed": np.ascontiguousarray(values["typed"]).tobytes().hex(),
            "typed_shape": list(values["typed"].shape),
            "fixed": values["fixed"].tobytes().hex(),
            "f32": values["f32"].tobytes().hex(),
        }
    ).encode()

write_archive("mds.tar.gz", members)

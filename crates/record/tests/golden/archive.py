# SPDX-License-Identifier: Apache-2.0
"""Packs the members of a golden archive. Equal members give equal bytes. Shared by the scripts of this folder."""

import gzip
import io
import tarfile
from pathlib import Path


def write_archive(name: str, members: dict[str, bytes]) -> None:
    """Write the members to `name`, a gzip'd tar in this folder."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    Path(__file__).with_name(name).write_bytes(gzip.compress(raw.getvalue(), mtime=0))

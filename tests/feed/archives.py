# SPDX-License-Identifier: Apache-2.0
"""Writes tar archives for tests."""

from __future__ import annotations

import io
import tarfile


def tar(path, members):
    with tarfile.open(path, "w") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path

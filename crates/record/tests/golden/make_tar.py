# SPDX-License-Identifier: Apache-2.0
"""Writes archives with Python's tarfile in each of its formats to this folder, for tests/it/tar.rs.

For each archive, also writes a text file with the name, offset and size of each regular file, as tarfile reads them.
"""

import gzip
import io
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
LONG = "d" * 60 + "/" + "e" * 60 + "/" + "long" * 30


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname, info.mtime = len(content), kind, link, 1_600_000_000
    return info, content


def make(name: str, form: int, members: list[tuple[tarfile.TarInfo, bytes]], **options: object) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form, **options) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    (HERE / f"{name}.tar.gz").write_bytes(gzip.compress(raw.getvalue(), mtime=0))
    with tarfile.open(fileobj=io.BytesIO(raw.getvalue())) as archive:
        lines = [f"{m.name}\t{m.offset_data}\t{m.size}\n" for m in archive if m.isreg()]
    (HERE / f"{name}.tar.txt").write_text("".join(lines))


PLAIN = [
    member("train/", kind=tarfile.DIRTYPE),
    member("train/000.jpg", b"jpeg" * 200),
    member("train/000.cls", b"7"),
    member("train/link.jpg", kind=tarfile.SYMTYPE, link="000.jpg"),
    member("train/001.JPG", b"\xff" * 512),
    member("train/hard.jpg", kind=tarfile.LNKTYPE, link="train/000.jpg"),
    member("train/001.seg.png", b""),
    member("train/fifo", kind=tarfile.FIFOTYPE),
]
USTAR_LONG = member("d" * 60 + "/" + "e" * 60 + "/" + "f" * 80, b"prefix")
FREE_LONG = [
    member(LONG + ".jpg", b"long name"),
    member("link", kind=tarfile.SYMTYPE, link=LONG),
    member(LONG + "2.cls", b"3"),
]

make("ustar", tarfile.USTAR_FORMAT, [*PLAIN, USTAR_LONG])
make("gnu", tarfile.GNU_FORMAT, [*PLAIN, USTAR_LONG, *FREE_LONG])
make("pax", tarfile.PAX_FORMAT, [*PLAIN, USTAR_LONG, *FREE_LONG, member("straße/日本.jpg", b"utf-8")])
make("pax_global", tarfile.PAX_FORMAT, [*PLAIN, *FREE_LONG], pax_headers={"comment": "all of them", "mtime": "1.5"})

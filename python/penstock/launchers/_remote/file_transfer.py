# SPDX-License-Identifier: Apache-2.0
"""File transfer between this machine and a node. The node runs this script with the arguments `receive|send PATH`.

The stream is one line with the length of the tar, followed by the tar. Files get their final names only when the whole
tar has arrived. A folder is merged into an existing folder, file by file; nothing is deleted. Does not import Penstock.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from typing import IO

CHUNK = 1 << 20


def pack(source: str, out: IO[bytes]) -> None:
    """Write a file or folder as a stream. A temporary tar is needed, because the stream starts with its size."""
    if not os.path.lexists(source):
        raise FileNotFoundError(2, "No such file or directory", source)
    with tempfile.TemporaryFile() as held:
        with tarfile.open(fileobj=held, mode="w") as tar:
            tar.add(source, arcname="it")
        size = held.tell()
        held.seek(0)
        out.write(json.dumps({"size": size}).encode() + b"\n")
        shutil.copyfileobj(held, out, CHUNK)
    out.flush()


def unpack(stream: IO[bytes], destination: str) -> None:
    """Read a stream, and store its file or folder at `destination`."""
    destination = os.path.abspath(destination)
    size = json.loads(stream.readline(200) or b'{"size": -1}')["size"]
    parent = os.path.dirname(destination)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".penstock-copy-", dir=parent) as folder:
        with tempfile.TemporaryFile(dir=folder) as held:
            shutil.copyfileobj(stream, held, CHUNK)
            if held.tell() != size:
                raise EOFError(f"{held.tell():,} of {size:,} bytes arrived")
            held.seek(0)
            with tarfile.open(fileobj=held) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(folder, filter="data")
                else:
                    tar.extractall(folder)  # noqa: S202 - an interpreter before filters; the stream is our own
        place(os.path.join(folder, "it"), destination)


def place(source: str, destination: str) -> None:
    if not os.path.isdir(source) or os.path.islink(source):
        if os.path.isdir(destination):
            raise IsADirectoryError(21, "Is a directory", destination)
        os.replace(source, destination)
        return
    os.makedirs(destination, exist_ok=True)
    for name in os.listdir(source):
        place(os.path.join(source, name), os.path.join(destination, name))


def main() -> int:
    verb, path = sys.argv[1:]
    try:
        if verb == "send":
            pack(path, sys.stdout.buffer)
        else:
            unpack(sys.stdin.buffer, path)
    except (OSError, EOFError, tarfile.TarError) as error:
        sys.stderr.write(f"{getattr(error, 'filename', None) or path}: {getattr(error, 'strerror', None) or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

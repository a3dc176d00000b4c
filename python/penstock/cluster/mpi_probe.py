# SPDX-License-Identifier: Apache-2.0
"""MPI probe: each rank prints the size of its MPI world and the name of its MPI library, as one JSON line.

Runs on the node or in a container by `python3 -c`, with the command to check as arguments. It loads the library that
the command is linked with, and imports only the standard library. Prints null if the command does not use MPI.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

_PYTHON = re.compile(r"python[0-9.]*$")
_FOUND = re.compile(r"(libmpi(?:ch)?\.so[.0-9]*)(?: => (\S+))?")
# MPI_COMM_WORLD of the MPICH family is this constant (MPICH ABI initiative); Open MPI has a symbol for it.
_MPICH_WORLD = 0x44000000
_NAME_BYTES = 8192


def uses_mpi4py(argv: list[str]) -> bool:
    """Whether a Python command mentions mpi4py or Horovod in its arguments or in its script."""
    for arg in argv[1:]:
        text = arg
        if arg.endswith(".py") and os.path.isfile(arg):  # noqa: PTH113 - a node's Python may be old
            with open(arg, errors="replace") as file:  # noqa: PTH123 - as above
                text = file.read()
        if "mpi4py" in text or "horovod" in text:
            return True
    return False


def linked_library(program: str) -> str | None:
    """Path of the MPI library that a program is linked with, or None."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run(["ldd", path], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = _FOUND.search(done.stdout)
    return (found[2] or found[1]) if found else None


def by_library(path: str) -> tuple[int, str]:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    size, length, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(_NAME_BYTES)
    library.MPI_Init(None, None)
    is_open = hasattr(library, "ompi_mpi_comm_world")
    world = ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")) if is_open else _MPICH_WORLD
    library.MPI_Comm_size(ctypes.c_void_p(world) if is_open else ctypes.c_int(world), ctypes.byref(size))
    library.MPI_Get_library_version(name, ctypes.byref(length))
    library.MPI_Finalize()
    return size.value, name.value.decode(errors="replace")


def by_mpi4py(program: str) -> tuple[int, str]:
    code = "from mpi4py import MPI as m;print(m.COMM_WORLD.size);print(m.Get_library_version())"
    done = subprocess.run([program, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    size, _, name = done.stdout.partition("\n")
    if not size.strip().isdecimal():
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
    return int(size), name


def main() -> None:
    argv = sys.argv[1:]
    if _PYTHON.search(argv[0]):
        found = by_mpi4py(argv[0]) if uses_mpi4py(argv) else None
    else:
        path = linked_library(argv[0])
        found = by_library(path) if path else None
    if found is None:
        sys.stdout.write("null\n")
        return
    size, name = found
    # MPICH's version has many lines; the first ones name the product and its version.
    words = " ".join(name.split())
    short = re.search(
        r"Open MPI v[0-9.]+|MPICH Version: ?[0-9.]+|Intel\(R\) MPI Library [0-9.]+|MVAPICH\S* Version ?:? ?[0-9.]+",
        words,
    )
    library = short[0].replace(" Version:", "") if short else words[:60]
    sys.stdout.write(json.dumps({"world": size, "library": library}) + "\n")


if __name__ == "__main__":
    main()

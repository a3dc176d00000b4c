# SPDX-License-Identifier: Apache-2.0
"""MPI probe: each rank prints the size of its MPI world and the name of its MPI library, as one JSON line.

Runs on the node or in a container by `python3 -c`, with the command to check as arguments. The probe loads the library
that the command is linked with, and imports only the standard library. Prints nothing if the command does not use MPI.
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
# MPI_COMM_WORLD of the MPICH family is this constant (MPICH ABI initiative); Open MPI has a symbol instead of a
# constant.
_MPICH_WORLD = 0x44000000
_NAME_BYTES = 8192
# The version text of some libraries has many lines. This expression matches the product and its version.
_PRODUCT = re.compile(
    r"Open MPI v[0-9.]+|MPICH Version: ?[0-9.]+|Intel\(R\) MPI Library [0-9.]+|MVAPICH\S* Version ?:? ?[0-9.]+"
)


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


def report(world: int | None, name: str) -> None:
    """Print a line. MPI_Init may end the process, so a line with the library and `world` null precedes that call."""
    words = " ".join(name.split())
    found = _PRODUCT.search(words)
    library = found[0].replace(" Version:", "") if found else words[:60]
    sys.stdout.write(json.dumps({"world": world, "library": library}) + "\n")
    sys.stdout.flush()


def by_library(path: str) -> None:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    size, length, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(_NAME_BYTES)
    library.MPI_Get_library_version(name, ctypes.byref(length))
    text = name.value.decode(errors="replace")
    report(None, text)
    library.MPI_Init(None, None)
    is_open = hasattr(library, "ompi_mpi_comm_world")
    world = ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")) if is_open else _MPICH_WORLD
    library.MPI_Comm_size(ctypes.c_void_p(world) if is_open else ctypes.c_int(world), ctypes.byref(size))
    library.MPI_Finalize()
    report(size.value, text)


def by_mpi4py(program: str) -> int:
    """Run mpi4py in the command's own interpreter; return its exit code."""
    code = (
        "import mpi4py;mpi4py.rc.initialize=False\n"
        "from mpi4py import MPI as m;print(' '.join(m.Get_library_version().split()),flush=True)\n"
        "m.Init();print(m.COMM_WORLD.size)"
    )
    # The child inherits PMI's socket, over which MPICH's ranks find each other.
    done = subprocess.run(
        [program, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False, close_fds=False
    )
    name, _, size = done.stdout.partition("\n")
    if name:
        report(int(size) if size.strip().isdecimal() else None, name)
    return done.returncode


def main() -> int:
    argv = sys.argv[1:]
    if _PYTHON.search(argv[0]):
        return by_mpi4py(argv[0]) if uses_mpi4py(argv) else 0
    path = linked_library(argv[0])
    if path is not None:
        by_library(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

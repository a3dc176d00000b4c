# SPDX-License-Identifier: Apache-2.0
"""Rank wrapper: runs the command of one rank on its node, ends it in time, and reports its exit code.

`node_program` sends this script to the node and runs it with the arguments OPTIONS ARGV... The script needs only Python
on the node, and imports only `penstock.ownership` and `penstock.cpu_binding`, which are sent along. It does three
things that a launcher cannot do remotely: - It ends the command's process group at the deadline, or when the launcher
or the connection ends. - It reports the result as a record on stderr, because launchers change exit codes. - It binds
the rank to CPUs near its devices, and reports the CPUs that the rank may use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from penstock.cpu_binding import bind_rank
from penstock.ownership import end_child, signal_child, signal_on_parent_death, wait_unreaped

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "\x1e"
FRAME = b"\x1f"
# Maximum payload of a frame: srun truncates labelled lines to 1,024 bytes, including srun's label and this script's
# marker.
FRAME_BYTES = 960
CHUNK = 1 << 16
GRACE_S = 5.0
# How long to read output after the command has ended: a child process of the command may keep the streams open.
LINGER_S = 0.5
# Variables with rank, world size, local rank and node number, set by launchers that number ranks themselves.
RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", None),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", None),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
)


def write_record(record: dict[str, Any]) -> None:
    """Write a record to stderr in a single write, so that it is not interleaved with lines of other ranks."""
    os.write(2, f"{MARK}{json.dumps(record)}{MARK}\n".encode())


def frames(chunk: bytes) -> bytes:
    """Split a chunk into frames: lines that are short enough for every launcher.

    A flag in each frame shows whether the command's line ends there (`.`) or continues in the next frame (`+`).
    """
    *whole, last = chunk.split(b"\n")
    made = []
    for line, flag in [*((line, b".") for line in whole), (last, b"+")]:
        while len(line) > FRAME_BYTES:
            made.append(FRAME + b"+" + line[:FRAME_BYTES])
            line = line[FRAME_BYTES:]
        if line or flag == b".":
            made.append(FRAME + flag + line)
    return b"".join(line + b"\n" for line in made)


def pump(source: IO[bytes], to: int) -> None:
    """Forward the command's output in frames, until the output ends or the reader has closed its end."""
    with suppress(OSError):
        while chunk := os.read(source.fileno(), CHUNK):
            left = memoryview(frames(chunk))
            while left:
                left = left[os.write(to, left) :]


class Pumps:
    """Threads that forward a command's output in frames, for launchers that mix the output of all ranks.

    Does nothing for other launchers, where the command writes its output directly.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        pairs = [(child.stdout, 1), (child.stderr, 2)]
        self.threads = [threading.Thread(target=pump, args=pair, daemon=True) for pair in pairs if pair[0]]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        until = time.monotonic() + LINGER_S
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))


def first_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line


def rank_identity(options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Return this rank's numbers and node, from the options or, if they are missing, from variables that the launcher
    has set.
    """
    if "rank" in options:
        return options
    for rank, world, local, node in RANK_VARIABLES:
        if environment.get(rank, "").isdecimal():
            found: dict[str, Any] = {"rank": int(environment[rank]), "world": int(environment.get(world, "1"))}
            found["local_rank"] = int(environment.get(local) or 0)
            a_node = options.get("ranks_per_node", 1)
            at = int(environment[node]) if node and environment.get(node, "").isdecimal() else found["rank"] // a_node
            names = options.get("names") or [""]
            name = environment.get("SLURMD_NODENAME", "")
            found["node"] = name if node and name in names else names[at % len(names)]
            return found
    return {"rank": 0, "world": 1, "local_rank": 0, "node": (options.get("names") or [""])[0]}


def torchrun_env(here: dict[str, Any]) -> dict[str, str]:
    """Return the variables that torchrun would set; empty if srun or mpirun numbers the ranks."""
    if "nodes" not in here:
        return {}
    return {
        "RANK": str(here["rank"]),
        "WORLD_SIZE": str(here["world"]),
        "LOCAL_RANK": str(here["local_rank"]),
        "LOCAL_WORLD_SIZE": str(here["ranks_per_node"]),
        "GROUP_RANK": str(here["node_at"]),
        "GROUP_WORLD_SIZE": str(here["nodes"]),
        "MASTER_ADDR": here["rendezvous"][0],
        "MASTER_PORT": str(here["rendezvous"][1]),
    }


def inherited_fds(environment: dict[str, str]) -> tuple[int, ...]:
    """File descriptors that the command needs besides its streams: the socket of PMI, over which MPICH's ranks find
    each other.
    """
    number = environment.get("PMI_FD", "")
    if not number.isdecimal():
        return ()
    try:
        os.fstat(int(number))
    except OSError:
        return ()
    return (int(number),)


class Stopped(BaseException):
    pass


def stop(*_: object) -> None:
    raise Stopped


def expand_placeholders(argv: Sequence[str], here: dict[str, Any]) -> list[str]:
    """Replace `{rank}`, `{world}`, `{local_rank}` and `{node}` in the arguments by this rank's values."""
    for name in ("rank", "world", "local_rank", "node"):
        argv = [arg.replace("{" + name + "}", str(here[name])) for arg in argv]
    return list(argv)


def end_command(child: subprocess.Popen[bytes], ends: list[str]) -> None:
    """End the command's process group with SIGTERM, then SIGKILL. Then run `ends`, a clean-up command."""
    end_child(child, GRACE_S)
    if ends:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=GRACE_S, check=False)


def main() -> int:
    options, argv = json.loads(sys.argv[1]), sys.argv[2:]
    signal_on_parent_death(signal.SIGTERM)
    environment = dict(os.environ)
    if options.get("reads_env"):
        environment.update(json.loads(first_line(0)))
    here = rank_identity(options, environment)
    environment.update({**torchrun_env(here), "PENSTOCK_NODE": str(here["node"])})
    argv = [
        *expand_placeholders(options.get("prefix", ()), here),
        *(expand_placeholders(argv, here) if options.get("expand") else argv),
    ]
    ends = expand_placeholders(options.get("cleanup", ()), here)
    record = {"rank": here["rank"], "node": here["node"]}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    child = None
    try:
        try:
            record["cpus"] = bind_rank(options.get("bind") or "none", here["local_rank"], environment)
        except (LookupError, ValueError, OSError) as error:
            write_record({**record, "fault": "bind", "text": str(error)[-300:]})
            return 126
        try:
            stream = subprocess.PIPE if options.get("frames") else None
            child = subprocess.Popen(
                argv, env=environment, cwd=options.get("cwd"), start_new_session=True, stdout=stream, stderr=stream,
                pass_fds=inherited_fds(environment),
                # If this process is killed (Hydra kills it when another rank has died), the command is killed, too. This
                # process has one thread, so `preexec_fn` is safe.
                preexec_fn=lambda: signal_on_parent_death(signal.SIGKILL),
            )  # fmt: skip
        except OSError as error:
            write_record({**record, "fault": "start", "text": f"{error.filename or argv[0]}: {error.strerror}"[-300:]})
            return 127
        pumps = Pumps(child)
        if not wait_unreaped(child, options["limit_s"]):
            end_command(child, ends)
            pumps.end()
            write_record({**record, "fault": "deadline"})
            return 124
    except Stopped:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if child is not None:
            end_command(child, ends)
        write_record({**record, "fault": "stopped"})
        return 143
    # End background processes that the command left in its process group. Daemons that left the group survive.
    signal_child(child, signal.SIGKILL)
    code = child.wait()
    pumps.end()
    code = 128 - code if code < 0 else code
    write_record({**record, "code": code})
    return code


if __name__ == "__main__":
    sys.exit(main())

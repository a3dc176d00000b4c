# SPDX-License-Identifier: Apache-2.0
"""Keys of a pool on a node, sent there as `python3 -c SOURCE VERB NODE` like the pool's agent, and like it of standard library.

The first node makes a key for the pool's life, and its private half stays there, in the pool's folder. The other nodes let
its public half in. Every line of ours in ~/.ssh carries the pool's name and lease: so it can be found and taken out again,
and the others stay as they are. A file that was not there says so in its first line, and goes with the last pool's lines.
Answers as the agent does.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SSHD = Path("/etc/ssh")
LIMIT_S = 20
MARK = "penstock-pool-"
MADE = "# made by penstock for keys of its pools"


def folder() -> Path:
    """ssh goes by the user's entry, whatever HOME says."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh")


def mark(order: dict[str, Any]) -> str:
    """What stands in every line of a pool's life; with no lease, of all of its lives."""
    return f"{MARK}{order['name']}:{order.get('lease', '')}"


@contextmanager
def edited(name: str) -> Iterator[list[str]]:
    """The lines of a file in ~/.ssh, to be changed: written whole, one writer at a time on a machine.

    The lock does not reach nodes that share a home over NFS; of one pool they all write the same.
    """
    folder().mkdir(mode=0o700, exist_ok=True)
    path = (folder() / name).resolve()  # a link stays one
    lock = os.open(folder(), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = read(path)
        was = text.removesuffix("\n").split("\n") if text else []
        lines = list(was)
        yield lines
        if lines == was:
            return
        if text is None:
            lines.insert(0, MADE)
        elif MADE in lines and not any(MARK in line for line in lines):
            lines.remove(MADE)
            if not lines:
                path.unlink(missing_ok=True)
                return
        write(path, lines, 0o600 if text is None else path.stat().st_mode & 0o777)
    finally:
        os.close(lock)


def read(path: Path) -> str | None:
    """None where it is not there. Bytes that are no text come back as they were by `write`."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return None


def write(path: Path, lines: list[str], mode: int) -> None:
    part = path.with_name(f"{path.name}.penstock-{socket.gethostname()}-{os.getpid()}")
    try:
        part.touch(mode)
        part.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# ---------------------------------------------------------------- verbs


def make(order: dict[str, Any]) -> str:
    """The public half of the pool's key, which is made where it is not there yet."""
    path = Path(order["root"], "keys/id")
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", mark(order), "-f", str(path)]
        subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True)
    return path.with_suffix(".pub").read_text().strip()


def shown(order: dict[str, Any]) -> list[str]:  # noqa: ARG001
    """The host keys that this node's sshd shows: type and key."""
    return [" ".join(path.read_text().split()[:2]) for path in sorted(SSHD.glob("ssh_host_*_key.pub"))]


def admit(order: dict[str, Any]) -> None:
    """Lets the pool's key in: for commands, and for nothing else that ssh can do."""
    with edited("authorized_keys") as lines:
        if not any(mark(order) in line for line in lines):
            lines.append(f"restrict {order['key']}")


def trust(order: dict[str, Any]) -> None:
    """On the first node: ssh goes to the pool's nodes with the pool's key, and knows their host keys."""
    keys = Path(order["root"], "keys")
    known = "".join(f"{address} {key}\n" for address, found in order["hosts"].items() for key in found)
    (keys / "known_hosts").write_text(known)
    known = f"{keys}/known_hosts {folder()}/known_hosts"
    with edited("config") as lines:
        if not any(mark(order) in line for line in lines):
            ours = [
                f"Host {' '.join(order['hosts'])}",
                f"IdentityFile {keys}/id",
                f"UserKnownHostsFile {known}",
                "Host *",
            ]
            # In front: ssh takes what it reads first. `Host *` gives all hosts what stands below, as it was.
            lines[:0] = [f"# {mark(order)} begins", *ours, f"# {mark(order)} ends"]


def withdraw(order: dict[str, Any]) -> list[str]:
    """Takes out every line of the pool; the files that had some."""
    found = left(order)
    for name in ("authorized_keys", "config") if found else ():
        with edited(name) as lines:
            kept, is_ours = [], False
            for line in lines:
                is_mark = mark(order) in line
                is_ours = (is_ours or (is_mark and line.endswith(" begins"))) and not (
                    is_mark and line.endswith(" ends")
                )
                if not is_mark and not is_ours:
                    kept.append(line)
            lines[:] = kept
    return found


def left(order: dict[str, Any]) -> list[str]:
    """The files that have lines of the pool, in words."""
    names = [name for name in ("authorized_keys", "config") if mark(order) in (read(folder() / name) or "")]
    return [f"key in {folder() / name}" for name in names]


VERBS = {"make": make, "shown": shown, "admit": admit, "trust": trust, "withdraw": withdraw, "left": left}


def main() -> int:
    verb, node = sys.argv[1:]
    orders = json.load(sys.stdin)
    order = {**orders.get("all", {}), **orders.get("each", {}).get(node, {})}
    try:
        answer: dict[str, Any] = {"ok": VERBS[verb](order)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        answer = {"error": "system", "text": f"{verb} of the pool's keys: {error}", "hint": ""}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

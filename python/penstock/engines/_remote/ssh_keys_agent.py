# SPDX-License-Identifier: Apache-2.0
"""Agent that adds and removes a pool's ssh keys on a node. The agent is sent and called like `node_agent`.

The first node creates a key pair for the lifetime of the pool. The private key stays in the pool's folder on that node;
all nodes accept the public key. The agent adds lines of a fixed form, with the pool's name and lease, to files in
~/.ssh, and later removes exactly these lines. If a line of the pool was changed, the agent does not remove the line,
but reports it.

If the agent creates a file, it adds a first line that records this. Such a file is removed when the last lines of any
pool are removed from it. Results have the same form as the results of the node agent.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pwd
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.ownership import NotOwned, OwnedFolder, leased, remove_file

if TYPE_CHECKING:
    from collections.abc import Iterator

SSHD = Path("/etc/ssh")
LIMIT_S = 20
MARK = "penstock-pool-"
MADE = "# made by penstock for keys of its pools"
# A public ed25519 key: the base64 text encodes the key type and 32 bytes.
KEY = re.compile(r"ssh-ed25519 ([A-Za-z0-9+/]{68})")
KEY_BEGINS = b"\0\0\0\x0bssh-ed25519\0\0\0 "
HOST_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}")
ADDRESS = re.compile(r"[A-Za-z0-9_.:%-]+")
# The lines inside a block in ~/.ssh/config. `Host *` makes the lines below the block apply to all hosts again.
BLOCK = (r"Host .+", r'IdentityFile "?.+/keys/id"?', r'UserKnownHostsFile "?.+/keys/known_hosts"? .+', r"Host \*")


def ssh_dir() -> Path:
    """Return the folder ~/.ssh. ssh takes the home folder from the user's passwd entry and ignores HOME."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh")


def mark(request: dict[str, Any]) -> str:
    """Return the marker that every line of this pool and lease contains; without a lease, the pool's common prefix."""
    return f"{MARK}{request['name']}:{request.get('lease', '')}"


def mark_form(request: dict[str, Any]) -> str:
    """Return a regular expression for the marker; without a lease, the expression matches every lease of the pool."""
    lease = request.get("lease", "")
    return re.escape(f"{MARK}{request['name']}:") + (re.escape(lease) if lease else "[0-9A-Za-z]+")


@contextmanager
def edit_lines(name: str) -> Iterator[list[str]]:
    """Edit the lines of a file in ~/.ssh under a lock, and write the file atomically.

    The lock works on one machine only. Nodes that share a home folder over NFS can edit the file at the same time, but
    all nodes of one pool write the same lines.
    """
    ssh_dir().mkdir(mode=0o700, exist_ok=True)
    path = (ssh_dir() / name).resolve()  # write to a link's target, so that the link is not replaced
    lock = os.open(ssh_dir(), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = read(path)
        was = (text or "").split(
            "\n"
        )  # the last item is empty if the text ends with a newline, so all bytes are preserved
        lines = list(was)
        yield lines
        if lines == was:
            return
        if text is None:
            lines.insert(0, MADE)
        elif MADE in lines and not any(MARK in line for line in lines):
            lines.remove(MADE)
            if lines == [""]:
                remove_file(path)
                return
        write(path, lines, 0o600 if text is None else path.stat().st_mode & 0o777)
    finally:
        os.close(lock)


def read(path: Path) -> str | None:
    """Return the text of a file; None if it is missing. Bytes that are not valid UTF-8 are restored by `write`."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return None


def write(path: Path, lines: list[str], mode: int) -> None:
    part = path.with_name(f".{path.name}.penstock-{os.urandom(8).hex()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write("\n".join(lines).encode(errors="surrogateescape"))
            os.fchmod(fd, mode)
        part.replace(path)
    finally:
        remove_file(part)


# ---------------------------------------------------------------- verbs


def make_key(request: dict[str, Any]) -> str:
    """Return the pool's public key (type and base64). Creates the key pair in the pool's folder if it is missing."""
    pool, _ = leased(request["root"], request["name"], request["lease"])
    pool.folder("keys")
    path = f"{pool.path}/keys/id"
    with OwnedFolder(f"{pool.path}/keys") as keys:
        if keys.read("id") is None:
            line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", mark(request), "-f", path]
            subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True)
    # The public key is derived from the private key, because the file `id.pub` could have been replaced.
    done = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True
    )
    return public(" ".join(done.stdout.decode().split()[:2]))


def public(text: str) -> str:
    """Check that the text is `ssh-ed25519 BASE64`, and return it."""
    found = KEY.fullmatch(text)
    if found is None or not base64.b64decode(found[1]).startswith(KEY_BEGINS):
        raise ValueError(f"{text[:100]!r} is not a valid ed25519 public key")
    return text


def host_keys(request: dict[str, Any]) -> list[str]:  # noqa: ARG001
    """Return the host keys that this node's sshd presents (type and base64)."""
    return [" ".join(path.read_text().split()[:2]) for path in sorted(SSHD.glob("ssh_host_*_key.pub"))]


def authorize(request: dict[str, Any]) -> None:
    """Accept the pool's public key, for commands only and no other ssh feature. Adds one line to `authorized_keys`."""
    line = f"restrict {public(request['key'])} {mark(request)}"
    with edit_lines("authorized_keys") as lines:
        if line not in lines:
            lines.insert(len(lines) - (lines[-1] == ""), line)


def add_known_hosts(request: dict[str, Any]) -> None:
    """On the first node: configure ssh to use the pool's key and known host keys for the pool's nodes."""
    pool, _ = leased(request["root"], request["name"], request["lease"])
    for address, found in request["hosts"].items():
        for item, form in ((address, ADDRESS), *((key, HOST_KEY) for key in found)):
            if form.fullmatch(item) is None:
                raise ValueError(f"{address}: {item[:100]!r} is neither a valid address nor a valid host key of a node")
    known = "".join(f"{address} {key}\n" for address, found in request["hosts"].items() for key in found)
    with OwnedFolder(f"{pool.path}/keys") as keys:
        keys.write("known_hosts", known.encode(), replaces=True)
    ours = [
        f"# {mark(request)} begins",
        f"Host {' '.join(request['hosts'])}",
        f"IdentityFile {quoted(f'{keys.path}/id')}",
        f"UserKnownHostsFile {quoted(f'{keys.path}/known_hosts')} {quoted(f'{ssh_dir()}/known_hosts')}",
        "Host *",
        f"# {mark(request)} ends",
    ]
    with edit_lines("config") as lines:
        if ours[0] not in lines:
            lines[:0] = ours  # at the start of the file: ssh uses the first value it finds


def quoted(path: str) -> str:
    """Quote a path for ssh's configuration."""
    if any(letter in path for letter in '"$\\\n'):
        raise ValueError(f"{path}: the ssh configuration does not support this path")
    return f'"{path.replace("%", "%%")}"'


def remove(request: dict[str, Any]) -> list[str]:
    """Remove the lines that this agent added for the pool; return the files that contained such lines, as messages."""
    found = leftovers(request)
    for name in ("authorized_keys", "config") if found else ():
        with edit_lines(name) as lines:
            at = 0
            while at < len(lines):
                end = end_of_ours(name, lines, at, request)
                if end > at:
                    del lines[at:end]
                else:
                    at += 1
    return found


def end_of_ours(name: str, lines: list[str], at: int, request: dict[str, Any]) -> int:
    """Return the index after the pool's lines that begin at `at`, or `at` itself if the line at `at` is not one of
    them.

    Raises:
        NotOwned: A block of the pool was changed. Removing only some of its lines would change the meaning of the other
            lines.
    """
    if name == "authorized_keys":
        return at + (re.fullmatch(f"restrict {KEY.pattern} {mark_form(request)}", lines[at]) is not None)
    if re.fullmatch(f"# {mark_form(request)} begins", lines[at]) is None:
        return at
    last = lines[at].replace(" begins", " ends")
    here = [*lines[at + 1 : at + 1 + len(BLOCK)], *[""] * len(BLOCK)]
    if not all(re.fullmatch(form, line) for form, line in zip(BLOCK, here)):  # noqa: B905 - old interpreters
        raise NotOwned(
            f"{ssh_dir() / name}: the block that begins in line {at + 1} was changed after Penstock wrote it",
            f"remove the block of {mark(request)} by hand, then run penstock pool down again",
        )
    end = at + 1 + len(BLOCK)
    return end + (lines[end : end + 1] == [last])


def leftovers(request: dict[str, Any]) -> list[str]:
    """List the files that contain lines of the pool, as messages."""
    names = [name for name in ("authorized_keys", "config") if mark(request) in (read(ssh_dir() / name) or "")]
    return [f"key in {ssh_dir() / name}" for name in names]


VERBS = {
    "make_key": make_key,
    "host_keys": host_keys,
    "authorize": authorize,
    "add_known_hosts": add_known_hosts,
    "remove": remove,
    "leftovers": leftovers,
}


def main() -> int:
    verb, node = sys.argv[1:]
    requests = json.load(sys.stdin)
    request = {**requests.get("all", {}), **requests.get("each", {}).get(node, {})}
    try:
        answer: dict[str, Any] = {"ok": VERBS[verb](request)}
    except NotOwned as error:
        answer = {"error": "precondition", "text": str(error), "hint": error.hint}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        answer = {"error": "system", "text": f"{verb} of the pool's keys: {error}", "hint": ""}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

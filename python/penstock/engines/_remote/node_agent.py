# SPDX-License-Identifier: Apache-2.0
"""Node agent of a pool: prepares, starts, checks and stops the pool's folder and processes on one node.

`node_program` sends this script to the node and runs it with the arguments VERB and NODE. The agent needs only Python
on the node, and imports only `penstock.ownership`, which is sent along. It reads requests as JSON from stdin, and
writes the result as one line of JSON: {"ok": ...}, or {"error": code, "text": ..., "hint": ...}.

On a node, a pool consists of one folder that contains its lease, and of processes with the lease in their environment.
Therefore, `stop` and `audit` also find the remains of a killed `start`. `stop` rejects a folder without a lease of the
pool.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.ownership import (
    LEASE,
    NotOwned,
    OwnedFolder,
    check_parents,
    end_processes,
    find_processes,
    lease_of,
    leased,
    mounts_below,
    start_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "PENSTOCK_POOL"
GRACE_S = 5.0
LOCK_S = 10.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
# Mount points of engines, relative to the pool's folder.
MOUNTS = ("mnt",)


class AgentError(Exception):
    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.hint = code, text, hint


def process_mark(name: str, root: str, lease: str = "") -> Callable[[bytes], bool]:
    """Return a predicate that matches the environment variable of a pool's processes for this folder.

    The predicate matches one lease, or every lease of the pool if `lease` is empty.
    """
    begins, ends = f"{MARK}={name}:{lease}".encode(), f":{root}".encode()
    return lambda item: item.startswith(begins) and item.endswith(ends)


def read_lease(root: str) -> dict[str, Any] | None:
    """Return the lease in a folder; None if the folder does not belong to Penstock or has no lease."""
    try:
        with OwnedFolder(root) as folder:
            return lease_of(folder)
    except OSError:
        return None


def lock_folder(folder: OwnedFolder, wait_s: float) -> Any:
    """Lock the pool's folder until this process ends; None if another process holds the lock for `wait_s`."""
    lock = os.open(LEASE, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder.fd)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                return None
            time.sleep(0.05)
        else:
            return lock


# ---------------------------------------------------------------- verbs


def _is_ours(held: dict[str, Any], request: dict[str, Any]) -> None:
    if (held.get("lease"), held.get("node")) != (request["lease"], request["node"]):
        raise AgentError(
            "precondition",
            f"{request['root']} is also the pool's folder on {held.get('node', 'another node')}",
            "add `{node}` to --disk, so that each node has its own folder",
        )


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Create the folder with a lease, and find free ports on the node's address."""
    root = request["root"]
    for pattern in request.get("wants", []):
        if not glob.glob(pattern):
            raise AgentError("not-found", f"{pattern} does not exist")
    try:
        os.makedirs(os.path.dirname(root), mode=0o755, exist_ok=True)
        check_parents(root)
        with OwnedFolder.made(root) as folder:
            acquire_lease(folder, request)
    except NotOwned:
        raise
    except OSError as error:
        code = {28: "no-space", 13: "denied", 30: "denied"}.get(error.errno or 0, "system")
        raise AgentError(code, f"{error.filename or root}: {error.strerror}") from error
    free = shutil.disk_usage(root).free
    if free < request.get("need_bytes", 0):
        raise AgentError("no-space", f"{root} has {free:,} bytes free, but the pool requires {request['need_bytes']:,}")
    return {
        "ports": free_ports(request["address"], request.get("ports", 0), request.get("fixed", [])),
        "free_bytes": free,
    }


def acquire_lease(folder: OwnedFolder, request: dict[str, Any]) -> None:
    """Write the lease unless one exists. If several nodes share the folder, only the first node succeeds.

    The lease is the first file in the folder. Therefore, a folder without a lease is either empty or does not belong to
    Penstock.
    """
    root, name, lease = request["root"], request["name"], request["lease"]
    held = lease_of(folder)
    if held is None:
        others = [entry for entry in folder.names() if not entry.startswith(f".{LEASE}.")]
        if others:
            raise AgentError(
                "precondition",
                f"{root} already exists, and contains no pool lease ({len(others):,} entries, such as {min(others)})",
                "move it away, or use another --name",
            )
        mine = {
            "lease": lease,
            "name": name,
            "root": root,
            "of": request["of"],
            "node": request["node"],
            "at_s": time.time(),
        }
        folder.write(LEASE, json.dumps(mine).encode(), replaces=False)
        held = lease_of(folder) or {}
    if held.get("kept"):
        raise AgentError(
            "precondition",
            f"{root} contains data that `pool down --keep-data` retained",
            f"move {root}/data away, or remove it with penstock pool down --name {name} and the same --disk and "
            "--nodes",
        )
    if held.get("lease") != lease:
        alive = find_processes(process_mark(name, root))
        what = f"{len(alive)} of its processes are running" if alive else "none of its processes is running"
        raise AgentError(
            "precondition",
            f"{root} belongs to another `pool up` of the pool `{name}` ({held.get('of', 'unknown')}): {what}",
            f"run penstock pool down --name {name} with the same --disk and --nodes to end it, or use another --name",
        )
    _is_ours(held, request)
    for part in ("logs", "conf", "data"):
        folder.folder(part)


def free_ports(address: str, count: int, fixed: list[int]) -> list[int]:
    held, found = [], []
    try:
        for port in [*fixed, *([0] * (count - len(fixed)))]:
            one = socket.socket()
            held.append(one)
            try:
                one.bind((address, port))
            except OSError as error:
                text = f"port {port} of {address} is in use" if error.errno == 98 else f"{address}: {error.strerror}"
                raise AgentError("precondition", text, "omit the port to use a free one") from error
            found.append(one.getsockname()[1])
    finally:
        for one in held:
            one.close()
    return found


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Write files, run one-time commands, and start the daemons that are not running yet."""
    root = request["root"]
    try:
        folder, _ = leased(root, request["name"], request["lease"])
    except OSError as error:
        raise AgentError("precondition", f"this `pool up` does not hold the lease of {root}: {error}") from error
    # The lock is held until all daemons run, so that a concurrent `stop` waits, and then finds all daemons.
    if lock_folder(folder, LOCK_S) is None:
        raise AgentError("precondition", f"{root} is locked by another command")
    for name in request.get("folders", []):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    for name, text in request.get("files", {}).items():
        with open(os.path.join(root, name), "w") as file:
            file.write(text)
    environment = {**os.environ, **request.get("env", {}), MARK: f"{request['name']}:{request['lease']}:{root}"}
    for once in request.get("once", []):
        if not os.path.exists(os.path.join(root, once["unless"])):
            with open(os.path.join(root, once["log"]), "ab") as log:
                run_once(once, environment, root, log)
    for daemon in request.get("daemons", []):
        record = os.path.join(root, daemon["name"] + ".pid")
        if daemon_pid(record):
            continue
        with open(os.path.join(root, daemon["log"]), "ab") as log:
            process = subprocess.Popen(
                daemon["argv"],
                env=environment,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with open(record, "w") as file:
            json.dump([process.pid, start_time(process.pid)], file)
    return {}


def run_once(once: dict[str, Any], environment: dict[str, str], root: str, log: Any) -> None:
    try:
        done = subprocess.run(
            once["argv"],
            env=environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=once["limit_s"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AgentError("deadline", f"{once['what']} did not end within {once['limit_s']:g} s") from None
    except OSError as error:
        raise AgentError("not-found", f"{error.filename or once['argv'][0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise AgentError(
            "system",
            f"{once['what']} failed with exit code {done.returncode}: {last_log_line(os.path.join(root, once['log']))}",
        )


def daemon_pid(record: str) -> int:
    """Process id of the daemon; 0 if it is not running."""
    try:
        with open(record) as file:
            pid, at = json.load(file)
    except (OSError, ValueError):
        return 0
    return pid if at and start_time(pid) == at else 0


def last_log_line(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 4000))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    errors = [line for line in lines if "Exception" in line or " ERROR " in line or " FATAL " in line]
    return (errors or lines or ["an empty log"])[-1].strip()[:300]


def alive(request: dict[str, Any]) -> dict[str, Any]:
    """Return the lease, the names of all daemons, and the last log line of each daemon that has ended."""
    root, found = request["root"], {}
    for record in sorted(glob.glob(os.path.join(glob.escape(root), "*.pid"))):
        name = os.path.basename(record)[:-4]
        found[name] = None if daemon_pid(record) else last_log_line(os.path.join(root, "logs", name + ".log"))
    held = read_lease(root)
    return {
        "lease": held and held["lease"],
        "dead": {n: last_line for n, last_line in found.items() if last_line},
        "daemons": list(found),
    }


def http(request: dict[str, Any]) -> Any:
    """GET a URL from this node. Returns the parsed JSON, or the text if it is not JSON."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request["url"], timeout=request["limit_s"]) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError) as error:
        raise AgentError("unreachable", f"{request['url']}: {getattr(error, 'reason', error)}") from error
    try:
        return json.loads(text)
    except ValueError:
        return text


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """End the pool's processes, unmount its mounts and remove its folder, which must contain a lease of the pool."""
    root, name, lease = request["root"], request["name"], request["lease"]
    is_mark = process_mark(name, root, lease)
    try:
        folder = OwnedFolder(root)
        if lease_of(folder) is None and not folder.names():  # a start was killed before it wrote its lease
            return {"processes": [], "mounts": [], "folders": [root] if folder.remove() else []}
        folder.close()
        folder, held = leased(root, name)
    except FileNotFoundError:
        return {"processes": sorted(end_processes(is_mark, GRACE_S).values()), "mounts": [], "folders": []}
    except NotOwned:
        if lease:  # the processes have this lease, so they may be stopped even if the folder belongs to another start
            end_processes(is_mark, GRACE_S)
        raise
    ended = end_processes(is_mark, GRACE_S)
    if lease and held["lease"] != lease:
        return {"processes": sorted(ended.values()), "mounts": [], "folders": []}  # the folder belongs to another start
    # A `start` whose caller was killed may still be starting daemons. It has finished when its lock is released.
    with suppress(FileNotFoundError):
        lock_folder(folder, LOCK_S)
    ended.update(end_processes(is_mark, GRACE_S))
    gone = folder.unmount(MOUNTS)
    if left := mounts_below(folder.path):
        raise AgentError(
            "system", f"{left[0]} could not be unmounted", f"end the processes that use it: fuser -m {left[0]}"
        )
    if request["keep_data"]:
        folder.remove(keep=("data", LEASE))
        folder.write(LEASE, json.dumps({**held, "kept": True}).encode(), replaces=True)
    folders = [] if request["keep_data"] or not folder.remove() else [root]
    return {"processes": sorted(ended.values()), "mounts": gone, "folders": folders}


def audit(request: dict[str, Any]) -> list[str]:
    """List what is left of the pool on this node (processes, mounts, folder, open ports), as messages."""
    root, name = request["root"], request["name"]
    found = [
        f"process {pid}: {last_line}" for pid, last_line in sorted(find_processes(process_mark(name, root)).items())
    ]
    found += [
        f"mount {path}"
        for path in mounts_below(os.path.join(os.path.realpath(os.path.dirname(root)), os.path.basename(root)))
    ]
    try:
        leased(root, name)[0].close()
        found.append(f"folder {root}")
    except FileNotFoundError:
        pass
    except NotOwned as error:
        found.append(f"folder {root}, which `pool down` does not remove: {error}")
    for port in request.get("ports", []):
        with suppress(OSError), socket.create_connection((request["address"], port), 1):
            found.append(f"port {port}")
    return found


def has(request: dict[str, Any]) -> bool:
    """Whether every pattern matches a file, and only root or this user can write to `folder`, if it is given."""
    folder = request.get("folder")
    return (folder is None or _is_trusted(folder)) and all(glob.glob(pattern) for pattern in request["patterns"])


def _is_trusted(folder: str) -> bool:
    try:
        found = os.lstat(check_parents(folder))
    except OSError:
        return False
    is_ours = found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and is_ours


VERBS = {"has": has, "prepare": prepare, "start": start, "alive": alive, "http": http, "stop": stop, "audit": audit}


def main() -> int:
    verb, node = sys.argv[1:]
    requests = json.load(sys.stdin)
    request = {**requests.get("all", {}), **requests.get("each", {}).get(node, {}), "node": node}
    try:
        if not NAME.fullmatch(request["name"]):
            raise AgentError("config", f"`{request['name']}` is not a valid pool name")
        answer: dict[str, Any] = {"ok": VERBS[verb](request)}
    except AgentError as refused:
        answer = {"error": refused.code, "text": refused.text, "hint": refused.hint}
    except NotOwned as error:
        answer = {"error": "precondition", "text": str(error), "hint": error.hint}
    except OSError as error:
        answer = {"error": "system", "text": f"{error.filename or ''}: {error.strerror}", "hint": ""}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

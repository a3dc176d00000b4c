# SPDX-License-Identifier: Apache-2.0
"""A pool's hands on a node: sent there as `python3 -c SOURCE VERB NODE`, with its orders as JSON on stdin.

Needs nothing on the node but Python, and imports nothing of Penstock. Everything of a pool on a node is one folder with
its lease, and processes that carry the lease in their environment: so `stop` and `audit` find what a killed `start` left.
Answers with one line of JSON: {"ok": ...}, or {"error": code, "text": ..., "hint": ...}.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

LEASE = "lease.json"
MARK = "PENSTOCK_POOL"
GRACE_S = 5.0
LOCK_S = 10.0


class Refused(Exception):
    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.hint = code, text, hint


def born(pid: int) -> int:
    """A process's start in clock ticks, which with its number names it for ever; 0 when it is gone or dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def marked(name: str, root: str, lease: str = "") -> dict[int, str]:
    """Processes that carry a lease of the pool on this folder, and their programs."""
    begins, ends = f"{MARK}={name}:{lease}".encode(), f":{root}".encode()
    found = {}
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(f"{folder}/environ", "rb") as file:
                if not any(item.startswith(begins) and item.endswith(ends) for item in file.read().split(b"\0")):
                    continue
            with open(f"{folder}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        pid = int(os.path.basename(folder))
        if born(pid):
            found[pid] = words.strip()[:200]
    return found


def mounts_below(root: str) -> list[str]:
    found = []
    with open("/proc/self/mounts") as file:
        for line in file:
            path = line.split()[1].encode().decode("unicode_escape")
            if path == root or path.startswith(root + "/"):
                found.append(path)
    return sorted(found, reverse=True)


def lease_of(root: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(root, LEASE)) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def take(root: str, lease: dict[str, Any]) -> None:
    """Writes the lease whole, where none is there yet: of nodes that come together one is the first."""
    temporary = os.path.join(root, f"{LEASE}.{socket.gethostname()}.{os.getpid()}")
    with open(temporary, "w") as file:
        json.dump(lease, file)
    try:
        os.link(temporary, os.path.join(root, LEASE))
    except FileExistsError:
        pass  # whoever is there is read next
    finally:
        os.unlink(temporary)


def locked(root: str, wait_s: float) -> Any:
    """The pool's folder for this process alone; None where it is not there or stays another's. Freed with the process."""
    try:
        lock = open(os.path.join(root, LEASE), "rb")  # noqa: SIM115 - held on purpose
    except OSError:
        return None
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                lock.close()
                return None
            time.sleep(0.05)
        else:
            return lock


# ---------------------------------------------------------------- verbs


def _is_ours(held: dict[str, Any], order: dict[str, Any]) -> None:
    if (held.get("lease"), held.get("node")) != (order["lease"], order["node"]):
        raise Refused(
            "precondition",
            f"{order['root']} is the pool's folder on {held.get('node', 'another node')} too",
            "a `{" + "node}` in --disk keeps them apart",
        )


def prepare(order: dict[str, Any]) -> dict[str, Any]:
    """Takes the folder under a lease, and finds free ports on the node's address."""
    root, lease, name = order["root"], order["lease"], order["name"]
    held = lease_of(root)
    if held is not None and held["lease"] != lease:
        alive = marked(name, root)
        what = f"{len(alive)} processes of it run" if alive else "nothing of it runs any more"
        raise Refused(
            "precondition",
            f"{root} holds the pool `{name}` of another start ({held.get('of', 'unknown')}): {what}",
            f"penstock pool down --name {name} with the same nodes ends it; another --name stands beside it",
        )
    if held is not None:
        _is_ours(held, order)
    for pattern in order.get("wants", []):
        if not glob.glob(pattern):
            raise Refused("not-found", f"{pattern} is not there")
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        for folder in ("logs", "conf", "data"):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        take(root, {"lease": lease, "name": name, "of": order["of"], "node": order["node"], "at_s": time.time()})
        _is_ours(lease_of(root) or {}, order)  # a node that came at the same moment may have been the first
    except OSError as error:
        code = {28: "no-space", 13: "denied", 30: "denied"}.get(error.errno or 0, "system")
        raise Refused(code, f"{error.filename or root}: {error.strerror}") from error
    free = shutil.disk_usage(root).free
    if free < order.get("need_bytes", 0):
        raise Refused("no-space", f"{root} has {free:,} bytes free, and the pool wants {order['need_bytes']:,}")
    return {"ports": ports(order["address"], order.get("ports", 0), order.get("fixed", [])), "free_bytes": free}


def ports(address: str, count: int, fixed: list[int]) -> list[int]:
    held, found = [], []
    try:
        for port in [*fixed, *([0] * (count - len(fixed)))]:
            one = socket.socket()
            held.append(one)
            try:
                one.bind((address, port))
            except OSError as error:
                text = f"port {port} of {address} is taken" if error.errno == 98 else f"{address}: {error.strerror}"
                raise Refused("precondition", text, "leave the port out, and a free one is taken") from error
            found.append(one.getsockname()[1])
    finally:
        for one in held:
            one.close()
    return found


def start(order: dict[str, Any]) -> dict[str, Any]:
    """Writes files, runs what is to be run once, and starts daemons that are not running yet."""
    root = order["root"]
    # Held until the last daemon runs: a `stop` that comes in between waits, and finds them all.
    lock = locked(root, LOCK_S)
    held = lease_of(root)
    if lock is None or held is None or held["lease"] != order["lease"]:
        raise Refused("precondition", f"{root} is not held by this start of the pool")
    for name in order.get("folders", []):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    for name, text in order.get("files", {}).items():
        with open(os.path.join(root, name), "w") as file:
            file.write(text)
    environment = {**os.environ, **order.get("env", {}), MARK: f"{order['name']}:{order['lease']}:{root}"}
    for once in order.get("once", []):
        if not os.path.exists(os.path.join(root, once["unless"])):
            with open(os.path.join(root, once["log"]), "ab") as log:
                run_once(once, environment, root, log)
    for daemon in order.get("daemons", []):
        record = os.path.join(root, daemon["name"] + ".pid")
        if alive_of(record):
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
            json.dump([process.pid, born(process.pid)], file)
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
        raise Refused("deadline", f"{once['what']} has not ended within {once['limit_s']:g} s") from None
    except OSError as error:
        raise Refused("not-found", f"{error.filename or once['argv'][0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Refused(
            "system", f"{once['what']} ended with {done.returncode}: {last_words(os.path.join(root, once['log']))}"
        )


def alive_of(record: str) -> int:
    """The daemon's process, or 0."""
    try:
        with open(record) as file:
            pid, at = json.load(file)
    except (OSError, ValueError):
        return 0
    return pid if at and born(pid) == at else 0


def last_words(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 4000))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    told = [line for line in lines if "Exception" in line or " ERROR " in line or " FATAL " in line]
    return (told or lines or ["an empty log"])[-1].strip()[:300]


def alive(order: dict[str, Any]) -> dict[str, Any]:
    """Which daemons run, and what the others said last."""
    root, found = order["root"], {}
    for record in sorted(glob.glob(os.path.join(root, "*.pid"))):
        name = os.path.basename(record)[:-4]
        found[name] = None if alive_of(record) else last_words(os.path.join(root, "logs", name + ".log"))
    held = lease_of(root)
    return {
        "lease": held and held["lease"],
        "dead": {n: words for n, words in found.items() if words},
        "daemons": list(found),
    }


def http(order: dict[str, Any]) -> Any:
    """What a URL answers, asked from this node: its JSON, or its text."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(order["url"], timeout=order["limit_s"]) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError) as error:
        raise Refused("unreachable", f"{order['url']}: {getattr(error, 'reason', error)}") from error
    try:
        return json.loads(text)
    except ValueError:
        return text


def end_processes(name: str, root: str, lease: str) -> dict[int, str]:
    """Asks the pool's processes to end, then kills them; those that it found."""
    ended: dict[int, str] = {}
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        until = time.monotonic() + wait_s
        while True:
            # Asked for again each time: what was about to start another has done so meanwhile.
            now = marked(name, root, lease)
            ended.update(now)
            for pid in now:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            if not now:
                return ended
            if time.monotonic() > until:
                break
            time.sleep(0.05)
    return ended


def stop(order: dict[str, Any]) -> dict[str, Any]:
    """Ends the pool's processes, mounts and folder."""
    root, name, lease = order["root"], order["name"], order["lease"]
    ended = end_processes(name, root, lease)
    # A start that was left alone by its killed owner may be about to run the next daemon: it is waited for.
    lock = locked(root, LOCK_S)
    ended.update(end_processes(name, root, lease))
    held = lease_of(root)
    if lease and held is not None and held["lease"] != lease:
        return {"processes": sorted(ended.values()), "mounts": [], "folders": []}  # the folder is another start's
    gone = []
    for path in mounts_below(root):
        for words in (["umount", path], ["fusermount3", "-u", path], ["umount", "-l", path]):
            with suppress(OSError, subprocess.SubprocessError):
                if (
                    subprocess.run(
                        words, stdin=subprocess.DEVNULL, capture_output=True, timeout=GRACE_S, check=False
                    ).returncode
                    == 0
                ):
                    gone.append(path)
                    break
    folders = []
    if os.path.isdir(root) and not mounts_below(root):
        for folder in os.listdir(root):
            if not (order["keep_data"] and folder in ("data", LEASE)):
                path = os.path.join(root, folder)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.unlink(path)
        if not os.listdir(root):
            os.rmdir(root)
            folders.append(root)
    if lock is not None:
        lock.close()
    return {"processes": sorted(ended.values()), "mounts": gone, "folders": folders}


def audit(order: dict[str, Any]) -> list[str]:
    """What is left of the pool, in words."""
    root, name = order["root"], order["name"]
    found = [f"process {pid}: {words}" for pid, words in sorted(marked(name, root).items())]
    found += [f"mount {path}" for path in mounts_below(root)]
    if os.path.isdir(root):
        found.append(f"folder {root}")
    for port in order.get("ports", []):
        with suppress(OSError), socket.create_connection((order["address"], port), 1):
            found.append(f"port {port}")
    return found


def has(order: dict[str, Any]) -> bool:
    """Whether something is there for every pattern."""
    return all(glob.glob(pattern) for pattern in order["patterns"])


VERBS = {"has": has, "prepare": prepare, "start": start, "alive": alive, "http": http, "stop": stop, "audit": audit}


def main() -> int:
    verb, node = sys.argv[1:]
    orders = json.load(sys.stdin)
    order = {**orders.get("all", {}), **orders.get("each", {}).get(node, {}), "node": node}
    try:
        answer: dict[str, Any] = {"ok": VERBS[verb](order)}
    except Refused as refused:
        answer = {"error": refused.code, "text": refused.text, "hint": refused.hint}
    except OSError as error:
        answer = {"error": "system", "text": f"{error.filename or ''}: {error.strerror}", "hint": ""}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

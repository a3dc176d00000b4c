# SPDX-License-Identifier: Apache-2.0
"""Tests that commands remove and signal only their own files, mounts and processes. Issue 19, item 1.

The unrelated things ("strangers") are links, mounts, files, other users' folders, leases of other pools, and processes
that reuse a pid.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import config
from penstock.bench import checkpoint, objects
from penstock.bench.results import whole_file
from penstock.bench.storage.scratch_dir import ScratchDir, sweep
from penstock.bench.storage.spec import Point
from penstock.datasets.files import prepare_folder
from penstock.demo import run as demo
from penstock.engines._remote import node_agent, ssh_keys_agent
from penstock.engines._shared.folder_access import FolderAccess
from penstock.errors import PenstockError
from penstock.feed.scan_lock import held
from penstock.launchers import netns_hosts as hosts_module
from penstock.launchers.netns_hosts import Hosts
from penstock.ownership import NotOwned, end_child, signal_child, start_time, unmount_device
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec
from penstock.stage.node_progress import SharedProgress

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs_root

_OTHER_USER = 65534
_LEASE = "00c0ffee00c0ffee"


@dataclass
class Verb:
    """A command that is about to remove `place`, which it made; `own` is one of its files there, or `place` itself."""

    place: Path
    own: Path
    run: Callable[[], object]
    instead: tuple[str, ...] = ("link", "file", "folder", "other user's")
    inside: tuple[str, ...] = ("link", "file link", "mount")


def _filled(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.bin").write_text("own")
    return folder / "own.bin"


def _order(home: Path, **more: Any) -> dict[str, Any]:
    root = f"{home}/disk/penstock-pool-p"
    order = {"name": "p", "lease": _LEASE, "root": root, "of": "local", "node": "n0", "address": "127.0.0.1"}
    return {**order, "keep_data": False, **more}


def _pool_down(home: Path) -> Verb:
    order = _order(home)
    node_agent.prepare(order)
    root = Path(order["root"])
    return Verb(root, _filled(root / "data"), lambda: node_agent.stop(order), instead=(*Verb.instead, "other lease"))


def _pool_down_that_keeps(home: Path) -> Verb:
    verb = _pool_down(home)
    (verb.place / "logs/own.bin").write_text("own")
    return Verb(
        verb.place, verb.place / "logs/own.bin", lambda: node_agent.stop(_order(home, keep_data=True)), verb.instead
    )


def _pool_up(home: Path) -> Verb:
    """`pool up` removes nothing, so `pool down` removes the folder here."""
    verb = _pool_down(home)

    def up() -> None:
        try:
            node_agent.prepare(_order(home))
        finally:
            verb.run()

    return Verb(verb.place, verb.own, up, verb.instead)


def _pool_record(home: Path) -> Verb:
    record = lifecycle.PoolRecord(
        state="up", engine="local", engine_settings={}, spec=PoolSpec("p", "/d"), lease=_LEASE
    )
    lifecycle._write_record(record, is_new=True)
    place = home / "state/penstock/pools/p.json"
    return Verb(place, place, lambda: lifecycle._delete_record(record), ("file link", "other lease"), ())


def _pool_object(home: Path) -> Verb:
    own = _filled(home / "pool/dir")
    access = FolderAccess(home / "pool", "n0", is_own=True)
    return Verb(own.parent, own, lambda: access.delete(["dir/own.bin"]), ("link", "file"), ("link", "file link"))


def _hosts_down(home: Path) -> Verb:
    place = home / "run/rehearsal"
    own = _filled(place)
    (place / "hosts.json").write_text(json.dumps({"pids": _PIDS, "subnet": "", "rate": None}))
    return Verb(place, own, lambda: Hosts.attach("rehearsal").down())


def _hosts_clear_dead(home: Path) -> Verb:
    place = home / "run/rehearsal"
    own = _filled(place)
    pids = {name: row for name, row in _PIDS.items() if start_time(row[0]) != row[1]}
    (place / "hosts.json").write_text(json.dumps({"pids": pids, "subnet": "", "rate": None}))
    return Verb(place, own, hosts_module._clear_dead)


def _bench_that_failed(home: Path) -> Verb:
    ground = ScratchDir(home / "bench", "s").__enter__()
    tree = ground.tree(Point(files=3), is_made=True)
    return Verb(tree, _filled(tree), lambda: ground.__exit__(ValueError, None, None))


def _bench_of_a_lost_host(home: Path) -> Verb:
    ground = ScratchDir(home / "bench", "s").__enter__()
    tree = ground.tree(Point(files=3), is_made=True)
    return Verb(tree, _filled(tree), lambda: sweep(home / "bench", "s"), ("link", "file", "other user's"))


def _bench_objects(home: Path) -> Verb:
    place = home / "bucket/penstock-bench-00c0ffee"
    return Verb(place, _filled(place), lambda: objects.clear(f"{place}/"), ("link",), ())


def _demo_that_keeps(home: Path) -> Verb:
    spec = demo.DemoSpec(home, SimpleNamespace(), keep=True)  # type: ignore[arg-type]
    with demo._folder(spec) as place:
        own = _filled(place)

    def run() -> None:
        with demo._folder(spec):
            pass

    return Verb(place, own, run)


def _demo(home: Path) -> Verb:
    block = demo._folder(demo.DemoSpec(home, SimpleNamespace()))  # type: ignore[arg-type]
    place = block.__enter__()
    return Verb(place, _filled(place), lambda: block.__exit__(None, None, None))


def _dataset(home: Path) -> Verb:
    place = home / "set/.penstock-part-0011aabb"
    place.parent.mkdir()
    place.write_text("half")
    return Verb(place, place, lambda: prepare_folder(home / "set", {"a"}), ("file link", "folder", "other user's"), ())


def _closed(board: SharedProgress) -> None:
    board.close()
    board._thread.join()


def _launch(home: Path) -> Verb:
    board = SharedProgress(home / "0123456789abcdef01234567", 0, 2, period_s=0.01)
    board.post({})
    place = board._folder
    while not (place / "0.json").exists():  # once this file exists, the board keeps its folder open
        time.sleep(0.001)
    (place / "1.json").write_text("{}")
    return Verb(place, place / "1.json", lambda: _closed(board), inside=())


def _launch_of_last_week(home: Path) -> Verb:
    place = home / "f123456789abcdef01234567"
    place.mkdir()
    (place / "1.json").write_text("{}")
    os.utime(place, (1e9, 1e9))
    now = home / "0123456789abcdef01234567"
    return Verb(place, place / "1.json", lambda: _closed(SharedProgress(now, 0, 2, period_s=60)), inside=())


def _consent(home: Path) -> Verb:
    (home / "penstock.toml").write_text("[stage]\n")
    environment = {"XDG_STATE_HOME": f"{home}/state"}
    place = config.allow(environment, home / "penstock.toml")
    return Verb(
        place, place, lambda: config.revoke(environment, home / "penstock.toml"), ("file link", "folder", "other user's"), ()
    )  # fmt: skip


def _scan_lock(home: Path) -> Verb:
    block = held(str(home), "index", "file:///d")
    assert block.__enter__()
    place = home / "index.lock"
    return Verb(
        place, place, lambda: block.__exit__(None, None, None), ("file link", "file", "folder", "other user's"), ()
    )


def _result(home: Path) -> Verb:
    block = whole_file(home / "result.json")
    block.__enter__().write(b"half")
    [place] = home.glob(".penstock-*")
    return Verb(place, place, lambda: block.__exit__(KeyError, KeyError(), None), ("file link", "folder"), ())


_VERBS = [
    _pool_down, _pool_down_that_keeps, _pool_up, _pool_record, _pool_object, _hosts_down, _hosts_clear_dead,
    _bench_that_failed, _bench_of_a_lost_host, _bench_objects, _demo_that_keeps, _demo, _dataset, _launch,
    _launch_of_last_week, _consent, _scan_lock, _result,
]  # fmt: skip


# ---------------------------------------------------------------- strangers

_PIDS: dict[str, tuple[int, int]] = {}
_NAMES = (
    "thesis.tex",
    "a" * 24,
    ".penstock-part-b",
    "penstock-pool-q",
    ".penstock-demo-data-q",
    "penstock-checkpoint-q",
)


@dataclass
class World:
    """`home`, where the commands work, and files and processes outside of it that they must not touch."""

    base: Path
    processes: dict[int, int]

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def victim(self) -> Path:
        return self.base / "victim"

    def assert_processes_live(self) -> None:
        """Asserts that the processes run and have no pending signal."""
        for pid, at in self.processes.items():
            text = Path(f"/proc/{pid}/status").read_text()
            rows = dict(re.findall(r"^(SigPnd|ShdPnd):\s*([0-9a-f]+)$", text, re.MULTILINE))
            assert (start_time(pid), int(rows["SigPnd"], 16), int(rows["ShdPnd"], 16)) == (at, 0, 0)

    def plant(self, at: Path, kind: str, was: Path | None = None) -> None:
        """Puts a stranger at the path `at`; `was` is the original that it replaces."""
        if kind in ("link", "file link"):
            at.symlink_to(self.victim / ("own.bin" if kind == "file link" else "."))
        elif kind == "mount":
            at.mkdir()
            subprocess.run(["mount", "--bind", self.victim, at], check=True)
        elif kind == "folder":
            shutil.copytree(self.victim, at)
        elif kind == "file" or was is None:
            at.write_text("years")
        else:
            (shutil.copytree if was.is_dir() else shutil.copy)(was, at)
            if kind == "other user's":
                os.chown(at, _OTHER_USER, -1)
            else:
                file = at / "lease.json" if at.is_dir() else at
                file.write_text(file.read_text().replace(_LEASE, "1" * 16))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    base = tmp_path_factory.mktemp("strangers")
    root = f"{base}/home/disk/penstock-pool-p"
    (base / "victim/.ssh").mkdir(parents=True)
    for name in ("own.bin", "hosts.json", "lease.json", "1.json", ".ssh/id"):
        (base / "victim" / name).write_text("years")
    marks = [
        f"PENSTOCK_POOL=p:{_LEASE}:{root}2", f"PENSTOCK_POOL=q:{_LEASE}:{root}", f"PENSTOCK_POOL=p:{'1' * 16}:{root}",
        "PENSTOCK_HOSTS=rehearsal2", "PENSTOCK_HOSTS=rehearsal",
    ]  # fmt: skip
    processes = {}
    for mark in marks:
        # The process is not a child of this one, like a process that reuses the pid of an ended child.
        line = ["env", mark, "sh", "-c", "setsid sleep 600 > /dev/null & echo $!"]
        pid = int(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)
        processes[pid] = start_time(pid)
    *_, other, reused = processes.items()
    _PIDS.update(h1=other, h2=(reused[0], reused[1] - 1), switch=(2**22 + 1, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", f"{base}/home/state")
        patch.setattr(hosts_module, "_STATE", base / "home/run")
        try:
            yield World(base, processes)
        finally:
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _seen(path: Path) -> dict[str, Any]:
    """State of all files and links below `path`; links are not followed."""
    inner = [Path(folder, name) for folder, *names in os.walk(path) for name in (*names[0], *names[1])]
    found = {str(at): os.lstat(at) for at in (path, *inner)}
    return {
        at: (facts.st_mode, facts.st_uid, facts.st_ino, facts.st_mtime_ns, _content(Path(at)))
        for at, facts in found.items()
    }


def _content(path: Path) -> object:
    return path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None


@pytest.mark.parametrize("verb", _VERBS, ids=lambda verb: verb.__name__.strip("_"))
@settings(max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    beside=st.dictionaries(
        st.sampled_from([*_NAMES, "{}2", ".{}", "{}~"]),
        st.sampled_from(["link", "file link", "file", "folder"]),
        max_size=4,
    )
)
def test_prop_removal_touches_no_stranger(verb, world, beside):
    for at in range(1, _try(verb, world, beside, 0)):
        _try(verb, world, beside, at)


def _try(verb: Callable[[Path], Verb], world: World, beside: dict[str, str], at: int) -> int:
    """Runs the command among strangers: those in `beside`, and variant number `at`; returns the number of variants."""
    shutil.rmtree(world.home, ignore_errors=True)
    shutil.rmtree(world.base / "aside", ignore_errors=True)
    for folder in ("home/run", "home/disk", "home/bucket", "aside"):
        (world.base / folder).mkdir(parents=True)
    outside = _seen(world.victim)
    it = verb(world.home)
    choices = [(None, ()), (None, it.inside), *((kind, ()) for kind in it.instead)]
    instead, inside = choices[at]
    beside = {name.format(it.place.name): kind for name, kind in beside.items()}

    planted = [
        it.place.parent / name
        for name, kind in beside.items()
        if not (kind == "file" and name.startswith(".penstock-part-"))
    ]
    for path in planted:
        world.plant(path, beside[path.name])
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    if instead:
        aside = it.place.rename(world.base / "aside/it")
        world.plant(it.place, instead, aside)
        planted.append(it.place)
    for kind in inside:
        world.plant(it.place / kind.replace(" ", "-"), kind)
    before = {path: _seen(path) for path in planted}
    try:
        with suppress(PenstockError, NotOwned, node_agent.AgentError):
            it.run()
        assert {path: _seen(path) if os.path.lexists(path) else "gone" for path in planted} == before
        assert _seen(world.victim) == outside
        world.assert_processes_live()
        if "mount" in inside:
            assert (it.place / "mount/.ssh/id").read_text() == "years"
        elif not instead and not (beside and verb is _dataset):
            assert not os.path.lexists(it.own)
    finally:
        if "mount" in inside:
            subprocess.run(["umount", it.place / "mount"], check=True)
    return len(choices)


def test_signal_goes_to_no_process_that_has_the_number_of_a_child_that_ended(world):
    for pid in world.processes:
        child = subprocess.Popen(["true"])
        child.wait()
        signal_child(child, signal.SIGKILL)
        child.returncode, child.pid = None, pid  # as for a child that another thread has reaped
        signal_child(child, signal.SIGKILL)
        end_child(child, 0.1)
    world.assert_processes_live()


_LINES = st.sampled_from([
    "", "# mine", "ssh-ed25519 AAAA penstock-pool-p", f"restrict ssh-ed25519 {'A' * 68} penstock-pool-q:{_LEASE}",
    f"restrict ssh-ed25519 {'A' * 68} penstock-pool-p:{'1' * 16}", f"ssh-ed25519 {'A' * 68} penstock-pool-p:{_LEASE}",
    f"# restrict ssh-ed25519 {'A' * 68} penstock-pool-p:{_LEASE}", f"restrict ssh-rsa AAAA penstock-pool-p:{_LEASE}",
])  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(before=st.lists(_LINES, max_size=4), after=st.lists(_LINES, max_size=4))
def test_prop_keys_of_others_stay_byte_for_byte(before, after, world, monkeypatch):
    shutil.rmtree(world.home, ignore_errors=True)
    world.home.mkdir()
    monkeypatch.setattr(ssh_keys_agent, "ssh_dir", lambda: world.home)
    file = world.home / "authorized_keys"
    ours = f"restrict ssh-ed25519 {'A' * 68} penstock-pool-p:{_LEASE}"
    file.write_text("\n".join([*before, ours, *after]))
    ssh_keys_agent.remove({"name": "p", "lease": _LEASE})
    assert file.read_text() == "\n".join([*before, *after])


def test_checkpoint_measurement_leaves_files_that_it_did_not_write(tmp_path):
    strangers = [tmp_path / f".penstock-checkpoint-{os.getpid()}-{rank}" for rank in range(2)]
    for stranger in strangers:
        stranger.write_text("years")
    checkpoint.measure(tmp_path, total_bytes=1 << 16, ranks=2)
    assert sorted(tmp_path.iterdir()) == sorted(strangers)
    assert {stranger.read_text() for stranger in strangers} == {"years"}


def test_mount_of_another_device_stays(tmp_path):
    at = tmp_path / "mnt"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", at], check=True)
    try:
        facts = at.stat()
        assert not unmount_device(str(at), "7:4095")
        assert at.is_mount()
        assert unmount_device(str(at), f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}")
        assert not at.is_mount()
    finally:
        subprocess.run(["umount", at], check=False, capture_output=True)

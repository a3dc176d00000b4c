# SPDX-License-Identifier: Apache-2.0
"""Tests of the collectors of `penstock explain`: parsers of /proc, of netlink and of py-spy, and real readings. Issue 17."""

import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.explain.conclude import _file_systems
from penstock.explain.frame_rules import Frame
from penstock.explain.network import Connections
from penstock.explain.proc_files import (
    BlockedCall,
    Mount,
    find_mount,
    parse_io,
    parse_mountinfo,
    parse_schedstat,
    parse_stat,
    parse_syscall,
)
from penstock.explain.sockets import TcpSockets, dump_request, parse_messages
from penstock.explain.stacks import parse_raw
from penstock.explain.tree import ProcessRecord, ProcessTree, ThreadRecord, read_text

STAT = (
    "4711 (a (b) c) S 1 4711 4700 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 12345 1000 256 18446744073709551615 1 1 0 0 0"
    " 0 0 0 0 0 0 0 17 1 0 0 33 0 0 0 0 0 0 0 0 0 0\n"
)


def test_stat_command_with_parentheses_is_parsed():
    found = parse_stat(STAT)
    assert found is not None
    assert (found.pid, found.comm, found.state, found.parent, found.session) == (4711, "a (b) c", "S", 1, 4700)
    assert (found.user_ticks, found.system_ticks, found.threads) == (250, 50, 7)
    assert (found.start_ticks, found.rss_pages, found.block_delay_ticks) == (12345, 256, 33)


def test_stat_of_this_process_matches_the_system():
    found = parse_stat(Path("/proc/self/stat").read_text())
    assert found is not None
    assert (found.pid, found.parent, found.state) == (os.getpid(), os.getppid(), "R")


@given(st.text())
def test_prop_parsers_of_proc_survive_any_text(text):
    for parse in (parse_stat, parse_io, parse_schedstat, parse_mountinfo, parse_raw):
        parse(text)
    parse_syscall(text, "x86_64")


@given(st.text(), st.integers(0, 400))
def test_prop_truncated_stat_is_none_or_whole(comm, length):
    text = STAT.replace("a (b) c", comm.replace("\n", " "))
    found = parse_stat(text[:length])
    assert found is None or found.pid == 4711


def test_io_and_schedstat_are_parsed():
    assert parse_io("rchar: 12\nsyscr: 3\nbad line\nwchar: x\n") == {"rchar": 12, "syscr": 3}
    assert parse_schedstat("92748 2900222 2\n") == (92748, 2900222)
    assert parse_schedstat("") == (0, 0)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("0 0x7 0x7f00 0x2000 0x0 0x0 0x0 0x7ffd 0x7f01\n", BlockedCall("read", 7)),
        ("17 0xff 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f01\n", BlockedCall("pread64", 255)),
        ("202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f01\n", BlockedCall("futex")),
        ("-1 0x7ffd 0x7f01\n", BlockedCall("page_fault")),
        ("running\n", None),
        ("9999 0x0 0x0\n", None),
    ],
)
def test_blocked_call_is_named_with_its_descriptor(text, call):
    assert parse_syscall(text, "x86_64") == call


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:2 - fuse.s3fs s3fs rw,user_id=0
31 22 0:41 / /data/with\040space rw shared:3 - nfs4 host:/x rw
32 22 0:42 / /dev/shm rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "point", "place"),
    [
        ("/home/a", "/", "local"),
        ("/data/a/b", "/data", "fuse"),
        ("/database/a", "/", "local"),
        ("/data/with space/x", "/data/with space", "remote"),
        ("/dev/shm/x", "/dev/shm", "memory"),
    ],
)
def test_mount_of_a_path_is_the_longest_that_contains_it(path, point, place):
    found = find_mount(path, parse_mountinfo(MOUNTS))
    assert isinstance(found, Mount)
    assert (found.mount_point, found.place) == (point, place)


def message(inode, *, received, rtt_us=1500, family=socket.AF_INET, info_bytes=232):
    """One answer of the kernel, built from its structures."""
    info = bytearray(info_bytes)
    for at, kind, value in ((68, "=I", rtt_us), (100, "=I", 2), (120, "=Q", 77), (128, "=Q", received), (160, "=Q", 9)):
        if at + struct.calcsize(kind) <= info_bytes:
            struct.pack_into(kind, info, at, value)
    pad = b"\0" * 12
    addresses = socket.inet_aton("10.0.0.1") + pad + socket.inet_aton("10.0.0.2") + pad
    body = struct.pack("!BBBBHH", family, 1, 0, 0, 40000, 443) + addresses + b"\0" * 12
    body += struct.pack("=IIIII", 0, 5, 0, 1000, inode)
    body += struct.pack("=HH", 4 + info_bytes, 2) + bytes(info)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_netlink_answer_is_parsed_with_tcp_info():
    found, is_last = parse_messages(message(5, received=1 << 40) + message(6, received=3) + DONE)
    assert is_last
    assert [one.inode for one in found] == [5, 6]
    first = found[0]
    assert (first.local, first.remote) == (("10.0.0.1", 40000), ("10.0.0.2", 443))
    assert (first.received_bytes, first.sent_bytes, first.retransmits, first.unread_bytes) == (1 << 40, 77, 2, 5)
    assert first.rtt_s == pytest.approx(1.5e-3)


def test_netlink_answer_of_an_old_kernel_has_fewer_figures():
    (one,), _ = parse_messages(message(5, received=7, info_bytes=104))
    assert (one.rtt_s, one.retransmits, one.received_bytes) == (pytest.approx(1.5e-3), 2, 0)


def test_netlink_answer_is_filtered_by_inode():
    found, _ = parse_messages(message(5, received=1) + message(6, received=1) + DONE, {6})
    assert [one.inode for one in found] == [6]


def test_netlink_refusal_raises_its_number():
    refusal = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)
    with pytest.raises(PermissionError):
        parse_messages(refusal)


@given(st.binary(max_size=600), st.integers(0, 600))
def test_prop_netlink_parser_survives_any_bytes(noise, cut):
    whole = message(5, received=1) + message(6, received=2)
    for data in (noise, whole[:cut] + noise, whole[:cut]):
        with suppress(OSError):  # the bytes happen to be a refusal
            parse_messages(data)


def test_netlink_request_has_its_own_length():
    request = dump_request(socket.AF_INET, 7)
    assert len(request) == struct.unpack_from("=I", request)[0] == 72


@pytest.fixture
def connection():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def test_kernel_counts_the_bytes_of_a_real_connection(connection):
    client, server = connection
    server.sendall(b"x" * 100_000)
    read = 0
    while read < 60_000:
        read += len(client.recv(60_000 - read))
    inode = os.fstat(client.fileno()).st_ino
    kernel = TcpSockets()
    try:
        (one,) = kernel.read({inode})
    finally:
        kernel.close()
    assert one.remote == server.getsockname()
    assert one.received_bytes == 100_000
    assert one.unread_bytes == 40_000
    assert 0 < one.rtt_s < 1


def test_connections_sum_what_arrives_after_the_start_up(connection):
    client, server = connection
    inodes = {os.fstat(client.fileno()).st_ino}
    connections = Connections()
    for now_s, size in ((1.0, 1000), (1.2, 500), (1.4, 0)):
        server.sendall(b"x" * size)
        if size:
            client.recv(size, socket.MSG_WAITALL)
        connections.read(now_s, inodes)
        if now_s == 1.0:
            connections.restart()
    (one,) = connections.endpoints(1.0)
    connections.close()
    assert (one.address, one.port, one.connections) == (*server.getsockname(), 1)
    assert one.received_bytes == 500
    assert one.receiving_share == pytest.approx(0.5)
    assert one.role == "store"


RAW = """process 7:"python train.py";thread (8): reader;work (/a b/train.py:12);Queue.put (/usr/lib/python3.11/queue.py:140) 30
thread (9);<module> (train.py:3);<lambda> (train.py:1) 4
thread (0x7F12): old;run (x.py) 1
no count
"""


def test_raw_stacks_keep_threads_frames_and_counts():
    found = {(stack.tid, stack.thread): (stack.frames, count) for stack, count in parse_raw(RAW).items()}
    frames, count = found[8, "reader"]
    assert count == 30
    assert frames == (
        Frame("work", "/a b/train.py", 12),
        Frame("Queue.put", "/usr/lib/python3.11/queue.py", 140),
    )
    assert found[9, ""][0][1] == Frame("<lambda>", "train.py", 1)
    assert found[0, "old"][0] == (Frame("run", "x.py", 0),)
    assert len(found) == 3


def test_tree_sees_threads_files_and_sockets_of_this_process(tmp_path, connection):
    client, _ = connection
    data = tmp_path / "shard-0.bin"
    data.write_bytes(b"x" * 1000)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    tree = ProcessTree(os.getpid())
    try:
        with data.open("rb", buffering=0) as file:
            tree.refresh()
            tree.read_descriptors()
            file.read(600)
            tree.refresh()
            tree.read_descriptors()
            tree.look()
    finally:
        is_over.set()
        thread.join()
    record = tree.records[os.getpid()]
    assert record.is_python
    assert {os.getpid(), thread.native_id} <= set(record.threads)
    assert record.file_bytes[str(data)] == 600
    assert os.fstat(client.fileno()).st_ino in record.inodes
    assert record.mount_of(str(data)) is not None
    delta = record.delta()
    assert delta is not None
    assert delta.read_chars >= 600
    assert not tree.denied


def test_tree_names_the_call_in_which_a_child_is_blocked():
    import subprocess

    argv = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tree = ProcessTree(child.pid)
        tree.refresh()
        tree.read_descriptors()
        until = time.monotonic() + 10
        while not tree.records[child.pid].threads[child.pid].calls and time.monotonic() < until:
            tree.look()
            time.sleep(0.01)
        child.communicate()
    assert tree.records[child.pid].threads[child.pid].calls["read", "pipe"] > 0


def test_long_file_of_proc_is_read_to_its_end():
    # The kernel returns /proc/PID/maps in pieces of less than a page.
    found = read_text("/proc/self/maps")
    assert found is not None
    assert len(found) > 4096
    assert abs(len(found) - len(Path("/proc/self/maps").read_text())) < 1024  # mappings may change in between


def test_blocked_share_of_a_file_system_counts_the_threads_that_read_it():
    mounts = [Mount("/", "ext4", "/dev/vda", "254:0"), Mount("/data", "ext4", "/dev/vdb", "254:16")]
    record = ProcessRecord(7, 1, 0, mounts=mounts)
    record.threads[7] = ThreadRecord(7, "main", looks=100)
    for tid in (8, 9, 10):
        calls = Counter({("pread64", "/data/a"): 60, ("read", "pipe"): 40})
        record.threads[tid] = ThreadRecord(tid, "reader", looks=100, calls=calls)
    seen = SimpleNamespace(records={7: record}, disks_before={}, disks_after={}, seen_s=10.0)
    (found,) = _file_systems(seen)
    assert (found.mount_point, found.blocked_share) == ("/data", pytest.approx(0.6))


def test_cpu_share_of_a_thread_that_was_read_once_is_unknown():
    one = ThreadRecord(7, "reader", times=[(1.0, 5, 0)])
    assert one.cpu_share() is None
    one.times.append((2.0, 5 + 300_000_000, 200_000_000))
    assert one.cpu_share() == pytest.approx(0.5)

# SPDX-License-Identifier: Apache-2.0
"""Tests small files that would expand to gigabytes: each is rejected at its limit, in a process with bounded memory."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from penstock import _native

from .parquet import (
    BYTES,
    DELTA_LENGTHS,
    DELTA_STRINGS,
    DICTIONARY,
    GZIP,
    INT32,
    OPTIONAL,
    PLAIN,
    REPEATED,
    one_column,
    page,
    run,
)

GB = 10**9
BLOCK = bytes(1 << 26)
HEADROOM = 1 << 30
"""Address space that a child may allocate after its imports. Threads take about 400 MiB of it."""

CHILD = """
import resource, sys, time
import numpy, penstock as ps
from pathlib import Path
from penstock import _native
from penstock.errors import PenstockError
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[2]),) * 2)
url, MEMORY = sys.argv[1], 256 << 20
def settle():
    used = -1.0
    while time.process_time() - used > 0.01:
        used = time.process_time()
        time.sleep(0.3)
try:
    for line in (lambda: {expression})():
        print(line)
except PenstockError as error:
    print(error.code, error)
"""


def bounded(url: Path, expression: str, headroom: int = HEADROOM) -> str:
    """Output of `expression` (which uses `ps`, `url` and MEMORY), line by line, from a process with limited memory."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.replace("{expression}", expression), str(url), str(headroom)],
        env={**os.environ, "MALLOC_ARENA_MAX": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr
    return done.stdout


def zeros_gzip(count: int, before: bytes = b"") -> bytes:
    """`before` and then `count` zero bytes, as gzip members; one member is compressed and repeated."""
    whole, rest = divmod(count, len(BLOCK))
    return gzip.compress(before, 1) + gzip.compress(BLOCK, 1) * whole + gzip.compress(bytes(rest), 1)


def header(length: int) -> bytes:
    """The header of a TFRecord whose payload has `length` bytes."""
    size = struct.pack("<Q", length)
    crc = _native.crc32c(size)
    return size + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(payload: bytes) -> bytes:
    """A TFRecord with a zero payload checksum, for readers that do not check it."""
    return header(len(payload)) + payload + bytes(4)


SCHEMA = "[ps.open(url).schema()]"
SAMPLES = "[ps.open(url).samples]"
BATCHES = "ps.Loader(ps.open(url).fields(x=ps.{kind}), batch_size=1, memory_bytes=MEMORY)"
RAW = BATCHES.replace("{kind}", "raw()")
INTS = BATCHES.replace("{kind}", 'ragged("int32")')


def test_parquet_page_of_one_long_string_is_refused_by_its_header(tmp_path):
    length = 3 * GB // 2
    body = zeros_gzip(length, struct.pack("<I", length))
    (tmp_path / "a.parquet").write_bytes(one_column([page(body, 1, size=length + 4)], kind=BYTES, rows=1, codec=GZIP))
    assert (tmp_path / "a.parquet").stat().st_size < 7_000_000
    answer = bounded(tmp_path, RAW)
    assert answer.startswith("budget a page of column `x` of file://"), answer
    assert "a.parquet needs 1,500,000,004 bytes, but the memory budget is 268,435,456 bytes" in answer
    assert bounded(tmp_path, SCHEMA).startswith("budget a page of column `x` of file://")


def test_parquet_page_that_inflates_beyond_its_header_stops_there(tmp_path):
    body = zeros_gzip(3 * GB // 2, struct.pack("<I", 100))
    (tmp_path / "a.parquet").write_bytes(one_column([page(body, 1, size=104)], kind=BYTES, rows=1, codec=GZIP))
    answer = bounded(tmp_path, RAW)
    assert answer.startswith("corrupt column `x` of file://"), answer
    assert "decompresses to more than the limit of 104 bytes" in answer


def levels(count: int) -> bytes:
    """Repetition and definition levels of one row of `count` values, all of them defined."""
    return b"".join(struct.pack("<I", len(one)) + one for one in (run(1, 0) + run(count - 1, 1), run(count, 1)))


def test_parquet_list_of_two_billion_equal_values_is_refused_by_its_header(tmp_path):
    count = 2**31 - 1
    pages = [
        page(struct.pack("<i", 7), 1, dictionary=True),
        page(levels(count) + b"\x01" + run(count, 0), count, encoding=DICTIONARY),
    ]
    content = one_column(pages, kind=INT32, rows=1, values=count, repetition=REPEATED, encodings=[PLAIN, DICTIONARY])
    assert len(content) < 300
    (tmp_path / "a.parquet").write_bytes(content)
    answer = bounded(tmp_path, INTS)
    assert answer.startswith("budget a list of column `x` of file://"), answer


@pytest.mark.parametrize(
    ("pages", "encodings", "problem"),
    [
        ([page(b"\0\0\0\0", 2**31 - 1, dictionary=True)], [PLAIN], "cannot contain a dictionary of 2,147,483,647 values"),
        # A delta header (blocks of 128 in 4 parts) of 2^40 lengths, all 0.
        ([page(b"\x80\x01\x04" + b"\x80\x80\x80\x80\x80\x20" + b"\0", 1, encoding=DELTA_LENGTHS)], [DELTA_LENGTHS], "deltas|value|lengths"),
        ([page(b"\x80\x01\x04\x01\0" + b"\x80\x01\x04" + b"\x80\x80\x80\x80\x80\x20" + b"\0", 1, encoding=DELTA_STRINGS)], [DELTA_STRINGS], "deltas|value|lengths"),
    ],
)  # fmt: skip
def test_parquet_counts_that_a_page_cannot_hold_are_damage(tmp_path, pages, encodings, problem):
    (tmp_path / "a.parquet").write_bytes(one_column(pages, kind=BYTES, rows=1, encodings=encodings))
    answer = bounded(tmp_path, RAW)
    assert answer.startswith("corrupt "), answer
    assert any(word in answer for word in problem.split("|")), answer


def test_parquet_page_that_makes_the_library_panic_is_damage_and_prints_nothing(tmp_path):
    # Bit-packed levels (encoding 4) of 1,000 values in a page of only 4 bytes.
    content = one_column([page(bytes(4), 1000, levels=4)], kind=BYTES, rows=1000, repetition=OPTIONAL)
    (tmp_path / "a.parquet").write_bytes(content)
    assert bounded(tmp_path, RAW).endswith("is damaged Parquet: its pages contradict each other\n")


@pytest.mark.parametrize("expression", [SCHEMA, SAMPLES])
def test_scan_of_zeros_under_the_name_of_a_tfrecord_ends_at_its_first_bytes(tmp_path, expression):
    (tmp_path / "a.tfrecord.gz").write_bytes(zeros_gzip(6 * GB))
    answer = bounded(tmp_path, expression)
    assert "a.tfrecord.gz is not a TFRecord: length checksum of record 0 is 0x" in answer, answer


def test_scan_of_a_tfrecord_that_inflates_beyond_memory_holds_none_of_it(tmp_path):
    one = frame(BLOCK)
    count = 3 * GB // len(one)
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(one, 1) * count)
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(frame(b"short"), 1))
    assert bounded(tmp_path, SAMPLES) == f"{count + 1}\n"


def test_schema_of_a_record_beyond_its_limit_is_refused(tmp_path):
    (tmp_path / "a.tfrecord.gz").write_bytes(zeros_gzip(3 * GB, header(2 * GB)))
    answer = bounded(tmp_path, SCHEMA)
    assert answer.startswith("budget the first record of file://"), answer
    assert "the memory budget is 1,073,741,824 bytes" in answer


def test_scan_of_a_compressed_tar_holds_no_more_than_a_window(tmp_path):
    member = tarfile.TarInfo("a.bin")
    member.size = 5 * GB
    (tmp_path / "a.tar.gz").write_bytes(zeros_gzip(5 * GB, member.tobuf()))
    answer = bounded(tmp_path, SAMPLES, headroom=3 << 30)
    assert answer.startswith("corrupt file://"), answer


def write_npz(path, length):
    """An npz file with one deflated member `x` of `length` zero bytes; it takes about a thousandth of that."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as out,
    ):
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (length,)})
        for at in range(0, length, len(BLOCK)):
            out.write(BLOCK[: length - at])


def test_npz_member_beyond_the_budget_is_refused_before_it_is_decompressed(tmp_path):
    write_npz(tmp_path / "a.npz", 3 * GB)
    answer = bounded(tmp_path, RAW)
    assert answer.startswith("budget member `x.npy` of file://"), answer
    assert "a.npz needs 3,000,000,128 bytes, but the memory budget is 268,435,456 bytes" in answer
    assert bounded(tmp_path, SCHEMA).startswith("budget member `x.npy` of file://")


def test_raw_values_of_a_batch_beyond_the_budget_are_refused(tmp_path):
    for name in "abcd":
        write_npz(tmp_path / f"{name}.npz", 100_000_000)
    batches = RAW.replace("batch_size=1", "batch_size=4")
    answer = bounded(tmp_path, batches)
    assert answer.startswith(
        "budget field `x` (all its variable-length values in one batch) needs 300,000,000 bytes"
    ), answer


def item_sizes(kind):
    """An expression for the size of each batch of one sample; after the first batch it waits until the feed is idle."""
    values = "x.values if isinstance(x, ps.Ragged) else np.frombuffer(x[0], 'u1') if isinstance(x, list) else x"
    batches = BATCHES.replace("{kind}", kind).replace("MEMORY", "MEMORY, read_ahead=16")
    each = f"for number, batch in enumerate({batches}) for x in [batch['x']]"
    return f"(({values}).nbytes for np in [numpy] {each} if number or not settle())"


@pytest.mark.parametrize("kind", ["raw()", 'ragged("uint8")'])
def test_members_that_decompress_to_a_thousand_times_their_size_stay_near_the_budget(tmp_path, kind):
    write_npz(tmp_path / "00.npz", 80_000_000)
    for number in range(1, 16):
        shutil.copyfile(tmp_path / "00.npz", tmp_path / f"{number:02}.npz")
    assert bounded(tmp_path, item_sizes(kind)).split() == ["80000000"] * 16


@pytest.mark.parametrize("shuffle", [".shuffle(seed=1)", ""])
def test_npy_object_of_millions_of_rows_is_read_in_stretches_within_the_budget(tmp_path, shuffle):
    np.save(tmp_path / "a.npy", (np.arange(3_000_000) % 251).astype(np.uint8))
    size, header = (tmp_path / "a.npy").stat().st_size, 128
    assert size == 3_000_000 + header

    def loader(form):
        # All batches planned at once would take 48 MB.
        return f"ps.Loader(ps.open(url, format={form}){shuffle}, batch_size=256, memory_bytes=40 << 20)"

    rows, fixed = (
        loader("ps.formats.npy(rows=True)"),
        loader(f"ps.formats.fixed(array=ps.tensor('uint8', ()), header_bytes={header})"),
    )
    same = f"sum(numpy.array_equal(a['array'], b['array']) for a, b in zip({rows}, {fixed}, strict=True))"
    assert bounded(tmp_path, f"[{same}]", 1 << 29) == f"{-(-3_000_000 // 256)}\n"


def test_npy_rows_of_no_bytes_are_refused_before_they_are_counted(tmp_path):
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({10**18}, 0), }}".ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    output = bounded(tmp_path, "[ps.open(url, format=ps.formats.npy(rows=True)).schema()]")
    assert output.startswith(f"corrupt file://{tmp_path}/a.npy has rows of 0 bytes (shape [{10**18}, 0])")

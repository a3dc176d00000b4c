# SPDX-License-Identifier: Apache-2.0
"""Compares `Dataset.decode(fn, workers=N)` with a torch DataLoader of N workers, over TFRecords that are not tf.Examples.

    .venv/bin/python benches/peers/feed/decode.py [--workers 2] [--samples 4000] [--repeats 5]

The function is Python code: it parses a protobuf-like message in pure Python, and crops, flips and normalises its
picture with NumPy. The DataLoader's dataset knows the offset of each record, and reads it with one `pread`, without its
checksum. Both sides keep their workers from pass to pass, so that the start of processes is not measured. Passes
alternate, after one warm-up each; the results are medians of wall and CPU-seconds. Every batch of every pass is hashed,
and both sides must give the same bytes in the same order.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import penstock
from penstock import _native

SIDE, CROP, BATCH = 96, 64, 32


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def frame(payload: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = _native.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def parse(content: bytes) -> dict[int, list]:
    """The fields of a message by number: integers, and bytes of texts or messages."""
    found, at = {}, 0
    while at < len(content):
        numbers = []
        while len(numbers) < 2:
            value = shift = 0
            while True:
                byte, at = content[at], at + 1
                value, shift = value | (byte & 0x7F) << shift, shift + 7
                if byte < 0x80:
                    break
            numbers.append(value)
        key, value = numbers
        if key & 7 == 2:
            value, at = content[at : at + value], at + value
        found.setdefault(key >> 3, []).append(value)
    return found


def decode(record: bytes) -> dict:
    """One sample: its boxes as int64, and its picture as a normalised float32 crop."""
    fields = parse(record)
    boxes = [parse(box) for box in fields[2]]
    draw = np.random.default_rng(fields[1][0])
    top, left = draw.integers(0, SIDE - CROP, 2)
    image = np.frombuffer(fields[3][0], np.uint8).reshape(SIDE, SIDE, 3)[top : top + CROP, left : left + CROP]
    if draw.random() < 0.5:
        image = image[:, ::-1]
    image = (image.astype(np.float32) / 255 - 0.45) / 0.22
    return {
        "x": np.ascontiguousarray(image.transpose(2, 0, 1)),
        "boxes": np.array([[box[1][0], box[2][0]] for box in boxes]),
        "y": np.int64(fields[1][0]),
    }


class Records(torch.utils.data.Dataset):
    """The records of TFRecord files by index, as a map-style dataset of torch would have them."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.files, self.places = paths, {}, []
        for number, path in enumerate(paths):
            content, at = path.read_bytes(), 0
            while at < len(content):
                (length,) = struct.unpack_from("<Q", content, at)
                self.places.append((number, at + 12, length))
                at += length + 16

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict:
        number, offset, length = self.places[index]
        if number not in self.files:
            self.files[number] = os.open(self.paths[number], os.O_RDONLY)
        return decode(os.pread(self.files[number], length, offset))


def write(folder: Path, samples: int) -> None:
    draw = np.random.default_rng(0)
    for first in range(0, samples, 200):
        content = b""
        for number in range(first, min(first + 200, samples)):
            boxes = draw.integers(0, SIDE, (20, 2)).tolist()
            body = b"".join(message(2, b"\x08" + varint(x) + b"\x10" + varint(y)) for x, y in boxes)
            picture = draw.integers(0, 255, SIDE * SIDE * 3, dtype=np.uint8).tobytes()
            content += frame(b"\x08" + varint(number) + body + message(3, picture))
        (folder / f"{first:06d}.tfrecord").write_bytes(content)


def cpu_s() -> float:
    """CPU seconds of this process and of its children that run now."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for pid in ["self", *children]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(batches) -> tuple[float, float, str]:
    """Wall and CPU seconds of a pass, and a hash of its batches."""
    seen = hashlib.blake2b(digest_size=8)
    began, used = time.perf_counter(), cpu_s()
    for batch in batches:
        for name in ("x", "boxes", "y"):
            seen.update(np.ascontiguousarray(batch[name]).data)
    return time.perf_counter() - began, cpu_s() - used, seen.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.samples)
        theirs = torch.utils.data.DataLoader(
            Records(sorted(Path(folder).glob("*.tfrecord"))),
            batch_size=BATCH,
            num_workers=arguments.workers,
            persistent_workers=True,
        )
        source = penstock.open(folder).fields(record=penstock.raw(record=True))
        sides = {
            "penstock": penstock.torch.Loader(source.decode(decode, workers=arguments.workers), batch_size=BATCH),
            "rebatched": penstock.torch.Loader(
                source.decode(decode, workers=arguments.workers, rebatch=True), batch_size=BATCH
            ),
            "DataLoader": theirs,
        }
        rows: dict[str, list[tuple[float, float, str]]] = {name: [] for name in sides}
        for repeat in range(arguments.repeats + 1):
            for name, batches in sides.items():
                found = timed(batches)
                if repeat:
                    rows[name].append(found)
    assert len({row[2] for found in rows.values() for row in found}) == 1, "all give the same bytes in the same order"
    wall, cpu = ({name: statistics.median(row[at] for row in found) for name, found in rows.items()} for at in (0, 1))
    load = os.getloadavg()[0]
    print(f"{arguments.workers} workers, {arguments.samples} samples, {_native.__profile__} build, load {load:.1f}")
    for name in rows:
        ratio = "" if name == "DataLoader" else f"  {wall['DataLoader'] / wall[name]:.2f}x wall"
        print(f"{name:>12}: {wall[name]:.2f} s wall, {cpu[name]:.2f} s CPU{ratio}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Small datasets for the programs of examples/week, written by the formats' own libraries or by penstock.write."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock
from tests.feed.tfrecords import frame as framed

WORDS = ["feed", "reads", "objects", "from", "store", "rank", "resumes", "exact", "position", "epoch", "world", "size"]


def _encoded(pixels, kind):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def _scene(rng, label, side=64):
    """A picture with a rectangle whose colour depends on the label, and the rectangle's sides in pixels."""
    pixels = rng.integers(0, 256, (side, side, 3), np.uint8) // 2
    x, y = rng.integers(0, side // 2, 2)
    width, height = rng.integers(side // 4, side // 2, 2)
    pixels[y : y + height, x : x + width] += np.array([label * 12, 100, 120 - label * 12], np.uint8)
    return pixels, (x, y, x + width, y + height)


def _text(rng, shortest=4, longest=60):
    return " ".join(rng.choice(WORDS, rng.integers(shortest, longest)))


def image_classification(folder):
    rng = np.random.default_rng(1)
    samples = ({"jpg": _encoded(_scene(rng, n % 10)[0], "JPEG"), "cls": n % 10} for n in range(250))
    penstock.write(samples, folder, format="tar", shard_bytes=60_000)


def segmentation(folder):
    rng = np.random.default_rng(2)

    def sample(number):
        pixels, (x0, y0, x1, y1) = _scene(rng, number % 3)
        labels = np.zeros((64, 64), np.uint8)
        labels[y0:y1, x0:x1] = 1 + number % 3
        return {"jpg": _encoded(pixels, "JPEG"), "png": _encoded(labels, "PNG")}

    penstock.write(map(sample, range(125)), folder, format="tar", shard_bytes=60_000)


def detection(folder):
    rng = np.random.default_rng(3)

    def sample(number):
        pixels, sides = _scene(rng, number % 5)
        # A second box outside of the rectangle, in every other picture.
        boxes = np.array([sides, (40, 40, 60, 60)][: 1 + number % 2], np.float32) / 64
        named = zip(("xmin", "ymin", "xmax", "ymax"), boxes.T, strict=True)
        return {
            "image/encoded": _encoded(pixels, "JPEG"),
            **{f"image/object/bbox/{name}": np.ascontiguousarray(side) for name, side in named},
            "image/object/class/label": 1 + np.arange(number, number + len(boxes)) % 5,
        }

    penstock.write(map(sample, range(125)), folder, format="tfrecord", shard_bytes=60_000)


def captions(folder):
    """Written by tarfile, so that nothing counts the samples in advance."""
    rng = np.random.default_rng(4)
    folder.mkdir()
    for shard in range(5):
        with tarfile.open(folder / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as out:
            for number in range(shard * 50, shard * 50 + 50):
                picture = _encoded(_scene(rng, number % 10)[0], "JPEG")
                for name, content in (("jpg", picture), ("txt", f"{number}: {_text(rng)}".encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{name}")
                    member.size = len(content)
                    out.addfile(member, io.BytesIO(content))


def pretraining(folder):
    rng = np.random.default_rng(5)
    folder.mkdir()
    for shard in range(6):
        lines = [json.dumps({"text": f"{shard} {number} {_text(rng, 2, 120)}"}) for number in range(25)]
        (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def tokenizer(file):
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator([" ".join(WORDS), "0 1 2 3 4 5 6 7 8 9"], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"]))  # fmt: skip
    made.save(str(file))


def fine_tuning(folder):
    rng = np.random.default_rng(6)
    folder.mkdir()
    chats = []
    for number in range(125):
        turns = [{"role": role, "content": _text(rng, 1, 10)} for role in ("user", "assistant") * rng.integers(1, 3)]
        chats.append(json.dumps({"messages": [{"role": "system", "content": f"chat {number}"}, *turns]}))
    (folder / "chats.jsonl").write_text("\n".join(chats) + "\n")


def recommender(folder):
    rng = np.random.default_rng(7)
    for day in range(1, 6):
        place = folder / f"day=2024-05-0{day}"
        place.mkdir(parents=True)
        rows = {
            "user": rng.integers(0, 1000, 100),
            "history": [rng.integers(0, 500, rng.integers(0, 9)).tolist() for _ in range(100)],
            "price": [None if rng.random() < 0.2 else float(np.float32(rng.random())) for _ in range(100)],
            "hour": rng.random(100) * 24,
            "clicked": rng.integers(0, 2, 100).astype("float32"),
        }
        table = pyarrow.table(rows).set_column(2, "price", pyarrow.array(rows["price"], pyarrow.float32()))
        table = table.set_column(3, "hour", pyarrow.array(rows["hour"].astype("float32")))
        pyarrow.parquet.write_table(table, place / "part-0.parquet")


def driving(folder):
    import driving_pb2

    rng = np.random.default_rng(8)
    folder.mkdir()
    for drive in range(5):
        records = []
        for number in range(drive * 25, drive * 25 + 25):
            frame = driving_pb2.Frame(timestamp_micros=number * 100_000, speed_m_per_s=rng.random() * 20)
            for camera in range(1, 1 + number % 4):
                frame.images.add(camera=camera, jpeg=_encoded(_scene(rng, camera)[0], "JPEG"))
            records.append(framed(frame.SerializeToString()))
        (folder / f"drive-{drive}.tfrecord").write_bytes(b"".join(records))


def speech(folder):
    import soundfile

    rng = np.random.default_rng(10)
    folder.mkdir()
    for shard in range(4):
        with tarfile.open(folder / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as out:
            for number in range(shard * 20, shard * 20 + 20):
                raw = io.BytesIO()
                rate, kind = ((16_000, "FLAC"), (8_000, "WAV"))[number % 2]
                soundfile.write(raw, rng.normal(0, 0.1, int(rate * rng.uniform(0.4, 2))), rate, format=kind)
                members = ((kind.lower(), raw.getvalue()), ("txt", f"{number} é {_text(rng, 1, 4)}".encode()))
                for name, content in members:
                    member = tarfile.TarInfo(f"{number:06d}.{name}")
                    member.size = len(content)
                    out.addfile(member, io.BytesIO(content))


def video(folder):
    import av

    rng = np.random.default_rng(9)
    for number in range(62):
        place = folder / ("run", "jump")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        with av.open(str(place / f"{number:03d}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            background = rng.integers(0, 256, (32, 48, 3), np.uint8)
            for at in range(30):
                pixels = np.roll(background, at * (1 + number % 2), axis=1)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())

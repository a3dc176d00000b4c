# SPDX-License-Identifier: Apache-2.0
"""Other readers on generated image datasets: TensorFlow, WebDataset, torchvision; and a model that learns the classes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.datasets.images import ImageSpec, generate

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"images": 40, "classes": 4, "shards": 3, "width": 64, "height": 48, "median_bytes": 2500}


@pytest.mark.needs_tf
def test_tensorflow_parses_and_decodes_generated_records(tmp_path):
    import tensorflow as tf

    from penstock.datasets import image_scenes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_scenes, "_CMYK", 0.2)
        patch.setattr(image_scenes, "_GREY", 0.2)
        generate(tmp_path, ImageSpec(**SETTINGS, broken=4), jobs=1)
    broken = {one["key"]: one["kind"] for one in json.loads((tmp_path / "dataset.json").read_text())["broken"]}
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "image/colorspace": tf.io.FixedLenFeature([], tf.string),
        "image/channels": tf.io.FixedLenFeature([], tf.int64),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/class/synset": tf.io.FixedLenFeature([], tf.string),
        "image/class/text": tf.io.FixedLenFeature([], tf.string),
        **{f"image/object/bbox/{side}": tf.io.VarLenFeature(tf.float32) for side in ("xmin", "ymin", "xmax", "ymax")},
    }
    files = tf.io.gfile.glob(str(tmp_path / "train/train-*-of-*"))
    labels, spaces = [], set()
    for record in tf.data.TFRecordDataset(sorted(files)):
        one = tf.io.parse_single_example(record, spec)
        key = one["image/filename"].numpy().decode().removesuffix(".JPEG")
        labels.append(int(one["image/class/label"]))
        if broken.get(key) in ("truncated", "not a JPEG", "empty"):
            with pytest.raises(tf.errors.InvalidArgumentError):
                tf.io.decode_jpeg(one["image/encoded"], channels=3)
            continue
        pixels = tf.io.decode_jpeg(one["image/encoded"], channels=3)
        assert pixels.shape == (int(one["image/height"]), int(one["image/width"]), 3)
        assert float(tf.math.reduce_std(tf.cast(pixels, tf.float32))) > 10
        boxes = tf.sparse.to_dense(one["image/object/bbox/xmax"])
        assert len(boxes) in (1, 2)
        spaces.add((one["image/colorspace"].numpy(), int(one["image/channels"])))
    assert spaces == {(b"RGB", 3), (b"Grayscale", 1), (b"CMYK", 4)}
    assert len(labels) == 40
    assert sorted(set(labels)) == [1, 2, 3, 4, 5]  # 5: the label out of range
    assert labels.count(5) == 1


WEBDATASET = """
import glob, sys
import webdataset

shards = sorted(glob.glob(sys.argv[1] + "/train/*.tar"))
dataset = webdataset.WebDataset(shards, shardshuffle=False).decode("rgb").to_tuple("jpg", "cls", "json", "__key__")
count = 0
for image, label, facts, key in dataset:
    assert image.shape == (facts["height"], facts["width"], 3), image.shape
    assert image.std() > 0.04
    assert label == facts["label"] and label in range(4)
    assert facts["filename"] == key.rpartition("/")[2] + ".JPEG"
    count += 1
print(count)
"""


@pytest.mark.needs_adapters
def test_webdataset_decodes_generated_tar_shards(tmp_path):
    generate(tmp_path, ImageSpec(**SETTINGS, format="tar", replicate=2), jobs=1)
    done = subprocess.run(
        [sys.executable, "-c", WEBDATASET, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".tools/adapters")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "80\n"), done.stderr[-3000:]


@pytest.mark.needs_torch
def test_small_network_learns_the_classes(tmp_path):
    """A network of three convolutions reaches five times chance on images that it has not seen."""
    import torch
    from torch import nn

    import penstock

    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings = {"images": 600, "validation": 200, "classes": 10, "width": 64, "height": 48, "median_bytes": 2500}
    generate(tmp_path, ImageSpec(**settings, format="folder"), jobs=1)

    def load(split):
        dataset = penstock.open(tmp_path / split).fields(
            image=penstock.image(48, crop="center"), label=penstock.tensor("int64", ())
        )
        (batch,) = penstock.Loader(dataset, batch_size=2000)
        x = torch.from_numpy(np.array(batch["image"])).permute(0, 3, 1, 2).float() / 128 - 1
        return x.contiguous(memory_format=torch.channels_last), torch.from_numpy(np.array(batch["label"]))

    def block(channels, out):
        return nn.Sequential(
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
        )

    model = nn.Sequential(
        block(3, 16), block(16, 32), block(32, 64), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    x, y = load("train")
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(30):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    x, y = load("validation")
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    assert accuracy > 0.5

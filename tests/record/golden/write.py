# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files in this folder with TensorFlow's writer. Run it by hand, with tensorflow-cpu 2.21."""

from __future__ import annotations

import struct
from pathlib import Path

import tensorflow as tf

HERE = Path(__file__).parent
X = b"".join(struct.pack("<h", n * n % 23) for n in range(256))
Y = [0.3089, 0.8159, 0.9667, 67.74]
IDS = [0, -1, 2**63 - 1]


def feature(value: bytes | list) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if isinstance(value[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if isinstance(value[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))


def write(name: str, records: list[dict], kind: str = "") -> None:
    with tf.io.TFRecordWriter(str(HERE / name), kind) as writer:
        for record in records:
            features = tf.train.Features(feature={key: feature(value) for key, value in record.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


both = [{"x": X, "y": [y + at for y in Y], "ids": IDS, "names": [b"one", b"", b"three"]} for at in range(2)]
write("tensorflow.tfrecord", both)
write("tensorflow.tfrecord.gz", both, "GZIP")
write("tensorflow-single.tfrecord", [{"y": Y}, {"ids": IDS}, {"x": X}])

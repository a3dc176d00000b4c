# SPDX-License-Identifier: Apache-2.0
"""Writes TFRecords by hand: frames of tf.Example and tf.SequenceExample."""

from __future__ import annotations

import struct

import numpy as np

from penstock import _native


def _varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _message(number, payload):
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def feature(values):
    """A Feature message of floats, integers or byte strings."""
    if values and isinstance(values[0], bytes):
        return _message(1, b"".join(_message(1, value) for value in values))
    if values and isinstance(values[0], float):
        return _message(2, _message(1, np.array(values, "<f4").tobytes()))
    return _message(3, _message(1, b"".join(_varint(value) for value in values)))


def _map(entries):
    return b"".join(_message(1, _message(1, name.encode()) + _message(2, value)) for name, value in entries.items())


def example(**features):
    """A tf.Example of features by name; each is a list of values."""
    return _message(1, _map({name: feature(values) for name, values in features.items()}))


def sequence_example(context, **lists):
    """A tf.SequenceExample: `context` holds features, and `lists` holds lists of steps, each a list of values."""
    steps = {name: b"".join(_message(1, feature(step)) for step in steps) for name, steps in lists.items()}
    return example(**context) + _message(2, _map(steps))


def frame(payload):
    """Frames one record as a TFRecord."""

    def masked(data):
        crc = _native.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)

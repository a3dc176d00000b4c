# SPDX-License-Identifier: Apache-2.0
"""Tests that an argument of the wrong type is a ConfigError with the argument's name and value, not a bare TypeError."""

from __future__ import annotations

import pytest

import penstock
import penstock.video
from penstock.errors import ConfigError
from penstock.feed.loader_arguments import epoch_number


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: penstock.audio("16k"), "sample_rate: must be an integer (got '16k')"),
        (lambda: penstock.audio(16_000, channels="2"), "channels: must be an integer (got '2')"),
        (lambda: penstock.audio(16_000, seconds="1"), "seconds: must be a number (got '1')"),
        (lambda: penstock.audio(16_000, max_seconds="1"), "max_seconds: must be a number (got '1')"),
        (lambda: penstock.image("224"), "height: must be an integer (got '224')"),
        (lambda: penstock.image(224, 2.5), "width: must be an integer (got 2.5)"),
        (lambda: penstock.image(224, resize="256"), "resize: must be an integer (got '256')"),
        (lambda: penstock.image(224, channels="RGB"), "channels: must be an integer (got 'RGB')"),
        (lambda: penstock.image(224, flip="yes"), "flip: must be a number (got 'yes')"),
        (lambda: penstock.image(224).randaugment(2, 9.5), "magnitude: must be an integer (got 9.5)"),
        (lambda: penstock.image(224).augment("rotate", "a"), "rotate: must be a number (got 'a')"),
        (lambda: penstock.image(224).augment("rotate", 1, fill="x"), "fill: must be an integer (got 'x')"),
        (lambda: penstock.image(224).jitter("a"), "brightness: must be a number (got 'a')"),
        (
            lambda: penstock.image(224).jitter(hue=(0.1,)),
            "hue: must be two numbers, minimum and maximum (got (0.1,))",
        ),
        (lambda: penstock.image(224, area=0.5), "area: must be a sequence of numbers (got 0.5)"),
        (lambda: penstock.image(224, mean=0.5), "mean: must be a sequence of numbers (got 0.5)"),
        (lambda: penstock.image(224).of(3), "of: must name at least one part (got 3)"),
        (lambda: penstock.boxes().of(3), "of: must name at least one part (got 3)"),
        (lambda: penstock.keypoints(2, flip_order=3), "flip_order: must be a sequence of numbers (got 3)"),
        (lambda: penstock.mask(fill="x"), "fill: must be an integer (got 'x')"),
        (lambda: penstock.boxes(min_area="a"), "min_area: must be a number (got 'a')"),
        (lambda: penstock.keypoints("17"), "count: must be an integer (got '17')"),
        (lambda: penstock.keypoints(2, flip_order="ab"), "flip_order: must be an integer (got 'a')"),
        (lambda: penstock.ragged("int32").padded(8.0), "to: must be an integer (got 8.0)"),
        (lambda: penstock.ragged("int32").padded(multiple_of="8"), "multiple_of: must be an integer (got '8')"),
        (lambda: penstock.buckets("x", 3, [4]), "boundaries: must be a list of whole numbers (got 3)"),
        (lambda: penstock.video.open("a", "3", size=3), "frames: must be an integer (got '3')"),
        (lambda: penstock.video.open("a", 3, size="3"), "size: must be an integer (got '3')"),
        (lambda: penstock.video.open("a", 3, size=3, fps="2"), "fps: must be a number (got '2')"),
        (
            lambda: penstock.video.open("a", 3, size=(3, 3, 3)),
            "size: must be one number, or (height, width) (got (3, 3, 3))",
        ),
        (lambda: penstock.image(None), "height: must be an integer (got None)"),
        (lambda: penstock.mask(fill=None), "fill: must be an integer (got None)"),
        (lambda: penstock.image(224).augment("rotate", b"a"), "rotate: must be a number (got b'a')"),
        (lambda: epoch_number("2"), "epoch: must be an integer (got '2')"),
    ],
)
def test_argument_of_the_wrong_type_is_named_with_its_value(call, text):
    with pytest.raises(ConfigError) as found:
        call()
    assert str(found.value) == text


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda ds: ds.take("a"), "count: must be an integer (got 'a')"),
        (lambda ds: ds.shuffle(None), "seed: must be an integer (got None)"),
        (lambda ds: ds.filter(bool, workers="a"), "workers: must be an integer (got 'a')"),
        (lambda ds: ds.resample([1], samples="a"), "samples: must be an integer (got 'a')"),
        (lambda ds: ds.shard("a", 2), "index: must be an integer (got 'a')"),
        (lambda ds: ds.repeat(2.0), "times: must be an integer (got 2.0)"),
        (lambda ds: ds.map(dict, workers="a"), "workers: must be an integer (got 'a')"),
        (lambda ds: ds.decode(dict, threads="a"), "threads: must be an integer (got 'a')"),
        (lambda ds: ds.pack(8.0), "length: must be an integer (got 8.0)"),
        (lambda ds: ds.pack(8, pad="a"), "pad: must be an integer (got 'a')"),
        (
            lambda ds: penstock.Loader(ds, batch_size=4, object_timeout_s="a"),
            "object_timeout_s: must be a number (got 'a')",
        ),
    ],
)
def test_step_argument_of_the_wrong_type_is_named_with_its_value(tmp_path, step, text):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    dataset = penstock.open(tmp_path / "a.jsonl").fields(x=penstock.tensor("int64", ()))
    with pytest.raises(ConfigError) as found:
        step(dataset)
    assert str(found.value) == text

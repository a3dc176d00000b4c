# SPDX-License-Identifier: Apache-2.0
"""Tests values in forms that files of other programs have (docs/reference/foreign.md)."""

from __future__ import annotations

import bz2
import io
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from penstock.errors import Corrupt, Unsupported

from .tfrecords import _message, example, frame


def decoded(path, **arguments):
    height, width = arguments.pop("size")
    spec = penstock.image(height, width, crop="none", **arguments)
    (batch,) = penstock.Loader(penstock.open(path).fields(image=spec), batch_size=1, rank=0, world=1)
    return batch["image"][0]


def test_jpeg_with_an_error_after_a_warning_is_damaged(tmp_path):
    # Regression: libjpeg-turbo reports an error that follows a warning as a warning, and the rest of the sample kept
    # the pixels of an earlier image.
    out = io.BytesIO()
    Image.effect_noise((32, 32), 80).convert("RGB").save(out, "JPEG")
    at = out.getvalue().index(b"\xff\xdb")
    content = bytearray(out.getvalue()[:at] + b"stray bytes" + out.getvalue()[at:])
    (tmp_path / "a.jpg").write_bytes(content)
    assert decoded(tmp_path / "a.jpg", size=(32, 32)).std() > 9  # only a warning
    content[content.index(b"\xff\xdb") + 4] = 0x0A
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(Corrupt, match="is a damaged JPEG: Bogus DQT index 10"):
        decoded(tmp_path / "a.jpg", size=(32, 32))


def records(dataset):
    loader = penstock.Loader(dataset, batch_size=4, rank=0, world=1)
    return [record for batch in loader for record in batch["record"]]


def test_tfrecord_of_messages_that_parse_as_empty_examples_is_read_whole(tmp_path):
    # TensorFlow Ranking's ExampleListWithContext: its bytes also are a tf.Example whose only feature has no value.
    payloads = [_message(1, example(x=[1])) + _message(2, example(q=[number])) for number in range(3)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(frame, payloads)))
    dataset = penstock.open(tmp_path)
    assert [name for name, _ in dataset.schema().specs] == ["record"]
    assert records(dataset) == payloads


def test_text_whose_values_are_all_null_is_read_whole(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"v": null}\n{"v": []}\n')
    (tmp_path / "a.csv").write_text("x,y\n,\n,\n")
    assert records(penstock.open(tmp_path / "a.jsonl")) == [b'{"v": null}', b'{"v": []}']
    assert records(penstock.open(tmp_path / "a.csv")) == [b",", b","]


def test_table_whose_values_are_all_null_is_an_error_that_names_a_column(tmp_path):
    pq.write_table(pa.table({"x": pa.array([None, None], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(
        Unsupported,
        match=r"a\.parquet \(no value has a known type; for example, `x` is null or empty in all 2 inspected records\)",
    ) as caught:
        penstock.open(tmp_path).schema()
    assert caught.value.hint.startswith("name the fields: ")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"P6\n2 2\n255\n", "PNM"),
        (b"P4 8 1 ", "PNM"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xff\x4f\xff\x51", "JPEG 2000"),
    ],
)
def test_image_of_another_format_under_a_known_suffix_is_not_called_damaged(tmp_path, head, kind):
    (tmp_path / "a.jpeg").write_bytes(head + bytes(64))
    dataset = penstock.open(tmp_path).fields(image=penstock.image(8))
    with pytest.raises(Unsupported, match=kind) as caught:
        next(iter(penstock.Loader(dataset, batch_size=1, rank=0, world=1)))
    assert caught.value.hint.startswith("convert the image to PNG or JPEG")


def tiff(pixels, **tags):
    """An uncompressed TIFF of 8-bit pixels (height, width, samples); `tags` are numbers by name."""
    height, width, samples = pixels.shape
    planes = samples if tags.get("planes") == 2 else 1
    each = pixels.nbytes // planes
    entries = {256: [width], 257: [height], 258: [8] * samples, 259: [1], 262: [2], 277: [samples], 278: [height]}
    entries |= {273: [8 + each * plane for plane in range(planes)], 279: [each] * planes}
    entries |= {{"fill_order": 266, "planes": 284, "extra": 338}[name]: [value] for name, value in tags.items()}
    table, lists, at = struct.pack("<H", len(entries)), b"", 8 + pixels.nbytes + 2 + 12 * len(entries) + 4
    for tag, values in sorted(entries.items()):
        kind, letter = (4, "I") if tag in (273, 279) else (3, "H")
        table += struct.pack("<HHII", tag, kind, len(values), values[0] if len(values) == 1 else at + len(lists))
        lists += struct.pack(f"<{len(values)}{letter}", *values) if len(values) > 1 else b""
    return b"II*\0" + struct.pack("<I", 8 + pixels.nbytes) + pixels.tobytes() + table + bytes(4) + lists


def test_tiff_with_premultiplied_alpha_is_read_as_pillow_reads_it(tmp_path):
    alpha = np.array([[255, 128, 1, 0]], np.uint8)[..., None]
    pixels = np.concatenate([np.minimum([[[200, 60, 0]]], alpha), alpha], -1).astype(np.uint8)
    for extra in (1, 2):
        (tmp_path / "a.tiff").write_bytes(tiff(pixels, extra=extra))
        with Image.open(tmp_path / "a.tiff") as image:
            assert image.mode == "RGBA"
            assert (decoded(tmp_path / "a.tiff", size=(1, 4)) == np.asarray(image.convert("RGB"))).all()
            assert (decoded(tmp_path / "a.tiff", size=(1, 4), channels=4) == np.asarray(image)).all()


@pytest.mark.parametrize(("tags", "form"), [({"fill_order": 2}, "fill order 2"), ({"planes": 2}, "separate planes")])
def test_tiff_of_a_form_that_is_not_read_is_refused_before_it_is_decoded(tmp_path, tags, form):
    (tmp_path / "a.tiff").write_bytes(tiff(np.zeros((4, 4, 3), np.uint8), **tags))
    with pytest.raises(Unsupported, match=form) as caught:
        decoded(tmp_path / "a.tiff", size=(4, 4))
    assert caught.value.hint.startswith("convert the image")


def test_jsonl_column_of_texts_and_booleans_is_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"c": "yes"}\n{"c": true}\n{"c": 3}\n{"c": [true]}\n{"c": false}\n')
    (batch,) = penstock.Loader(penstock.open(tmp_path), batch_size=8, rank=0, world=1)
    assert batch["c"] == ["yes", "true", "3", "[true]", "false"]
    flags = penstock.open(tmp_path).select([1, 4])
    for spec, want in [(penstock.tensor("bool", ()), [True, False]), (penstock.ragged("uint8"), [[1], [0]])]:
        (batch,) = penstock.Loader(flags.fields(c=spec), batch_size=2, rank=0, world=1)
        assert [
            each.tolist() for each in (batch["c"] if spec.dtype == "bool" else map(batch["c"].row, range(2)))
        ] == want


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_text_in_an_unsupported_codec_is_an_error_with_the_name_of_the_codec(tmp_path, kind):
    (tmp_path / "a.txt").write_bytes(bz2.compress(b'{"a": 1}\n' * 100))
    with pytest.raises(Unsupported, match="bzip2-compressed data") as caught:
        penstock.open(tmp_path, format=kind).schema()
    assert caught.value.hint.startswith("compress the object by gzip, zstd or LZ4")
    (tmp_path / "a.txt").write_bytes(b"BZhang,1\nx,2\n")
    assert penstock.open(tmp_path, format=penstock.formats.csv(header=False, columns=["a", "b"])).samples == 2


def test_json_document_of_several_lines_is_an_error_with_the_way_to_join_them(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}, indent=2))
    with pytest.raises(Corrupt, match=r"EOF while parsing an object at byte 1 \(if the object continues .*jq -c \."):
        penstock.open(tmp_path / "a.json", format="jsonl").schema()

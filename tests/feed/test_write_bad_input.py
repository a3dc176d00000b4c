# SPDX-License-Identifier: Apache-2.0
"""Tests that samples that disagree, values without a form, unsafe keys and wrong settings get one clear error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, KeyRefused, Unsupported
from penstock.writer.values import Field, Fields

from .written import FORMATS, read, some

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("second", "error", "text"),
    [
        ({"a": 1}, ConfigError, "sample 1 lacks the field `b`"),
        ({"a": 1, "b": None}, ConfigError, "sample 1 lacks the field `b`"),
        (
            {"a": 1, "b": np.zeros(2), "c": 1},
            ConfigError,
            "sample 1 has the field `c`, which is not among the fields `a`, `b`",
        ),
        ({"a": "1", "b": np.zeros(2)}, ConfigError, "sample 1: `a` is a str, instead of int"),
        ({"a": 2**64, "b": np.zeros(2)}, ConfigError, "sample 1: `a` is 18446744073709551616, instead of int"),
        ({"a": 1, "b": np.zeros(2, np.int8)}, ConfigError, "sample 1: `b` is int8 array, instead of float64 array"),
        ({"a": 1, "b": "x"}, ConfigError, "sample 1: `b` is .*, instead of float64 array"),
        (
            {"a": 1, "b": np.zeros((2, 2))},
            Unsupported,
            r"sample 1: `b` has the shape \[2, 2\], but an earlier sample has \[2\]",
        ),
        ([1], ConfigError, "sample 1 is a list, instead of a dict"),
    ],
)
def test_write_sample_that_differs_is_named(tmp_path, second, error, text):
    with pytest.raises(error, match=text):
        penstock.write([{"a": 1, "b": np.zeros(2)}, second], tmp_path)


@pytest.mark.parametrize(
    ("sample", "error", "text"),
    [
        ({}, ConfigError, "sample 0 has no fields"),
        ({"x": object()}, Unsupported, "`x` is a builtins.object, which no format stores"),
        ({"x": np.array(["a"])}, Unsupported, "which no format stores"),
        ({"x": np.zeros(2, np.complex64)}, Unsupported, "complex64, which no format stores"),
        ({"x": []}, ConfigError, "`x` is an empty list, whose type is unknown"),
        ({"x": [[1], [2, 3]]}, ConfigError, "`x` is a list of lists of unequal lengths"),
        ({1: b""}, ConfigError, "a field whose name is 1"),
        ({"\ud800": 1}, ConfigError, r"a field whose name is '\\ud800'"),
        ({"x": 1e300}, ConfigError, r"`x` is 1e\+300, which does not fit into a float_list"),
    ],
)
def test_write_first_sample_without_a_form_is_refused(tmp_path, sample, error, text):
    with pytest.raises(error, match=text):
        penstock.write([sample], tmp_path / "d")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("../a", "leaves the archive"),
        ("/a", "leaves the archive"),
        ("", "leaves the archive"),
        ("a.b", "contains a dot"),
        ("a\nb", "control character"),
        ("a\\b", "backslash"),
        ("\ud800", "not valid Unicode"),
        ("k" * 2000, "too long"),
    ],
)
def test_write_tar_unsafe_key_is_refused(tmp_path, key, text):
    with pytest.raises(KeyRefused, match=f"sample 0: the key .*{text}"):
        penstock.write([{"__key__": key, "txt": "a"}], tmp_path, format="tar")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("good", "bad"), [("é", "é\ud800"), (["é"], ["a", "\ud800"]), ({"a": "é"}, {"a": "\ud800"})])
def test_write_text_that_is_not_unicode_is_refused(tmp_path, kind, good, bad):
    with pytest.raises(ConfigError, match="sample 1: `x` contains an unpaired surrogate, which UTF-8 cannot represent"):
        penstock.write([{"x": good}, {"x": bad}], tmp_path, format=kind)


def test_write_tar_names_are_checked(tmp_path):
    with pytest.raises(KeyRefused, match="sample 1: the key 'a' is the key of two samples"):
        penstock.write([{"__key__": "a", "txt": "a"}] * 2, tmp_path / "a", format="tar")
    with pytest.raises(KeyRefused, match="'a/b' cannot be an extension"):
        penstock.write([{"a/b": b""}], tmp_path / "b", format="tar")
    with pytest.raises(KeyRefused, match="'' cannot be an extension"):
        penstock.write([{"": b""}], tmp_path / "b", format="tar", schema={"": penstock.raw()})
    with pytest.raises(ConfigError, match=r"`JPG` and `jpg` would have the same tar member, `\.jpg`"):
        penstock.write([{"JPG": b"", "jpg": b""}], tmp_path / "c", format="tar")
    with pytest.raises(Unsupported, match="`x` is a list of bytes, which a tar member cannot store"):
        penstock.write([{"x": [b"a"]}], tmp_path / "d", format="tar")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "csv"}, "format: `csv` is not one of tfrecord, tar, parquet"),
        ({"shard_bytes": 0}, "shard_bytes: must be at least 1"),
        ({"compress": "lz4"}, "compress: `lz4` is not one of"),
        ({"level": 3}, "level: requires compress"),
        ({"level": 99, "compress": "gzip"}, "level: must be 0 to 12 for gzip in tfrecord"),
        ({"level": 10, "compress": "gzip", "format": "parquet"}, "level: must be 1 to 9 for gzip in parquet"),
        ({"level": 99, "compress": "zstd"}, "level: must be -7 to 22 for zstd in tfrecord"),
        ({"shard_bytes": "30kB"}, "shard_bytes: must be an integer"),
        ({"name": "../x"}, "name: must consist of letters, .*got '../x'"),
        ({"if_exists": "maybe"}, "if_exists: `maybe` is not one of"),
        ({"workers": 0}, "workers: must be at least 1"),
        ({"schema": {"x": penstock.image(8)}}, "schema: `x` must be a penstock.tensor"),
    ],
)
def test_write_invalid_setting_is_refused(tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        penstock.write(some(1), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_write_without_samples_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there are no samples"):
        penstock.write([], tmp_path)
    with pytest.raises(ConfigError, match="there are no samples"):
        penstock.write([], tmp_path, schema={"x": penstock.raw()})


def test_write_buffers_may_be_reused_by_the_caller(tmp_path):
    def reused() -> Iterator[dict[str, Any]]:
        buffer = np.zeros(4, np.float32)
        for at in range(10):
            buffer[:] = at
            yield {"x": buffer}

    for kind in FORMATS:
        penstock.write(reused(), tmp_path / kind, format=kind)
        assert [row["x"][0] for row in read(tmp_path / kind)] == list(range(10))


def test_fields_restore_their_state():
    fields = Fields([Field("x", "array", "int8")])
    fields.values({"x": np.zeros((2, 3), np.int8)}, 0)
    fields.values({"x": np.zeros((1, 3), np.int8)}, 1)
    state = fields.to_dict()
    again = Fields.of_state(state, frees=False)
    again.restore(json.loads(json.dumps(state)))
    assert (
        again.to_dict()
        == state
        == {"x": {"kind": "array", "dtype": "int8", "shape": [2, 3], "ragged": True, "free": False}}
    )


def test_write_integers_beyond_the_schema_are_refused_not_wrapped(tmp_path):
    schema = {"x": penstock.ragged("uint16")}
    penstock.write(({"x": list(range(n))} for n in range(3)), tmp_path / "fits", schema=schema)
    for value in ([70_000], [-1], np.array([70_000], np.uint32)):
        with pytest.raises(ConfigError, match="sample 1: `x` is"):
            penstock.write([{"x": [1]}, {"x": value}], tmp_path / "beyond", schema=schema, if_exists="overwrite")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (np.float32(0.5), np.float64(0.1), r"`x` is np.float64\(0.1\), instead of float32"),
        (np.float16(0.5), 1e6, "`x` is 1000000.0, instead of float16"),
        (0.5, 2**60 + 1, "`x` is 1152921504606846977, instead of float64"),
        (0.5, 10**400, "`x` is 10*, instead of float64"),
        ([0.5], [2**60 + 1], "`x` is int64 array that does not fit, instead of float"),
    ],
)
def test_write_number_that_the_type_would_change_is_refused(tmp_path, kind, first, second, text):
    with pytest.raises(ConfigError, match=f"sample 1: {text}"):
        penstock.write([{"x": first}, {"x": second}], tmp_path, format=kind)


@pytest.mark.parametrize("value", [[1e300], [2**24 + 1], np.array([1e300])])
def test_write_number_that_the_schema_would_change_is_refused(tmp_path, value):
    schema = {"x": penstock.ragged("float32")}
    penstock.write([{"x": [0.1, float("inf"), float("nan"), 2**24]}], tmp_path / "fits", schema=schema)
    with pytest.raises(ConfigError, match=r"`x` is .* array that does not fit, instead of float32 array"):
        penstock.write([{"x": value}], tmp_path / "d", schema=schema)


def test_write_numbers_that_fit_take_the_type_of_the_first(tmp_path):
    values = [np.float64(0.5), 0.25, np.float32(0.125), np.float16(2), 3, np.int8(-1), float("inf")]
    penstock.write([{"x": value} for value in values], tmp_path, format="parquet")
    assert [row["x"] for row in read(tmp_path)] == values

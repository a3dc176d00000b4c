# SPDX-License-Identifier: Apache-2.0
"""Tests that schema() leaves out parts that no field can read, and distinguishes two parts of the same name."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest

import penstock
from penstock.errors import Mismatch, Unsupported

from .test_unknown_columns import feature, field, framed


def whole(dataset):
    (batch,) = penstock.Loader(dataset, batch_size=8, rank=0, world=1)
    return batch


def test_npz_members_that_no_field_reads_are_left_out(tmp_path, caplog):
    # Regression: one text or object member made the whole schema fail.
    arrays = {"x": np.arange(3), "note": np.array("a text"), "fortran": np.asfortranarray(np.zeros((2, 3)))}
    np.savez(tmp_path / "a.npz", object=np.array([{}], dtype=object), complex=np.zeros(2, complex), **arrays)
    dataset = penstock.open(tmp_path)
    schema = dataset.schema()
    assert [name for name, _ in schema.specs] == ["x"]
    assert {name for name, _ in schema.left_out} == {"note", "object", "complex", "fortran"}
    assert whole(dataset)["x"].tolist() == [[0, 1, 2]]
    assert "the default fields do not include `note`" in caplog.text
    np.savez(tmp_path / "a.npz", note=np.array("a text"))
    with pytest.raises(Unsupported, match="note"):
        penstock.open(tmp_path).schema()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_members_that_are_not_npy_files_are_bytes(tmp_path, save):
    # numpy.load also returns such members as bytes.
    save(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.txt", "text " * 9)
        archive.writestr("folder/", b"")
    assert np.load(tmp_path / "a.npz")["about.txt"] == b"text " * 9
    batch = whole(penstock.open(tmp_path))
    assert batch["x"].tolist() == [[0, 1, 2]]
    assert bytes(batch["about.txt"][0]) == b"text " * 9


def test_feature_and_feature_list_of_one_name_are_told_apart(tmp_path):
    # Regression: schema() showed the name twice, and the context's value was read without notice.
    def sequence_example(sample):
        context = field(1, field(1, field(1, b"x") + field(2, feature([sample]))))
        steps = b"".join(field(1, feature([step])) for step in range(sample + 1))
        return framed(context + field(2, field(1, field(1, b"x") + field(2, steps))))

    (tmp_path / "a.tfrecord").write_bytes(b"".join(sequence_example(sample) for sample in range(3)))
    dataset = penstock.open(tmp_path)
    assert [name for name, _ in dataset.schema().specs] == ["context/x", "feature_lists/x"]
    batch = whole(dataset)
    assert batch["context/x"].tolist() == [0, 1, 2]
    assert batch["feature_lists/x"].values.tolist() == [0, 0, 1, 0, 1, 2]
    with pytest.raises(Mismatch, match=r"`x` is both in the context and in the feature lists; use `context/x`"):
        whole(dataset.fields(x=penstock.tensor("int64", ())))
    named = dataset.fields(label=penstock.tensor("int64", ()).of("context/x"))
    assert whole(named)["label"].tolist() == [0, 1, 2]


def test_schema_of_arrays_that_differ_in_rows_is_ragged(tmp_path):
    boxes = [np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) for rows in (0, 1, 2)]
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for number, values in enumerate([*boxes, None]):
            content = io.BytesIO(b"no boxes")
            if values is not None:
                np.save(content, values)
            member = tarfile.TarInfo(f"{number}.{'txt' if values is None else 'boxes.npy'}")
            member.size = len(content.getvalue())
            out.addfile(member, io.BytesIO(content.getvalue()))
    dataset = penstock.open(tmp_path)
    assert dict(dataset.schema().specs)["boxes.npy"] == penstock.ragged("float32", (4,))
    batch = whole(dataset)["boxes.npy"]
    assert batch.offsets.tolist() == [0, 0, 1, 3, 3]
    assert np.array_equal(batch.values, np.concatenate(boxes))


def test_empty_list_of_json_is_a_value(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"l": [], "t": []}\n{"t": [1]}\n{"l": [1.5], "t": null}\n')
    fields = {"l": penstock.ragged("float64", default=(), mask="is_there"), "t": penstock.text(default="none")}
    batch = whole(penstock.open(tmp_path).fields(**fields))
    assert batch["is_there"].tolist() == [True, False, True]
    assert list(batch["t"]) == ["[]", "[1]", "none"]


def test_schema_counts_empty_lists_of_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"b": []}\n{"b": [1]}\n{}\n')
    assert "a value in 2 of 3 records" in str(penstock.open(tmp_path).schema())

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock audit-order`: the order is the same for any ranks, threads and paths, and a difference is reported."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from penstock import _native


def write(folder, counts, *, packed):
    folder.mkdir()
    sample = 0
    for number, count in enumerate(counts):
        content = b"".join(
            _native.encode_tfrecord({"x": bytes([sample + at] * 4), "y": [float(sample + at)]}) for at in range(count)
        )
        sample += count
        name = f"part-{number}.tfrecord"
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


def test_audit_order_is_one_for_ranks_threads_and_a_staged_copy(run_cli, tmp_path):
    packed = write(tmp_path / "packed", [3, 2, 4, 1, 6], packed=True)
    plain = write(tmp_path / "plain", [3, 2, 4, 1, 6], packed=False)
    saved = tmp_path / "audit.json"
    done = run_cli("audit-order", packed, "--ranks", "1,3", "--threads", "1,2", "--batch", 5, "--output", saved)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "one order"
    other = run_cli("audit-order", plain, "--ranks", "2", "--threads", "1", "--batch", 5, "--against", saved, "--json")
    assert other.code == 0, other.err
    found = json.loads(other.out)
    assert found["is_same"]
    assert len(found["steps"]) == 4
    assert len({tuple(step) for step in found["steps"]}) == 4
    assert json.loads(saved.read_text())["configurations"][3]["ranks"] == 3

    changed = write(tmp_path / "changed", [3, 2, 4, 1, 6], packed=False)
    content = (changed / "part-2.tfrecord").read_bytes()
    (changed / "part-2.tfrecord").write_bytes(content.replace(bytes([6] * 4), bytes([7] * 4)))
    shutil.copy(plain / "part-2.tfrecord", tmp_path)
    bad = run_cli("audit-order", changed, "--ranks", "1", "--threads", "1", "--batch", 5)
    assert bad.code == 1  # its checksum no longer matches
    assert "corrupt" in bad.err
    frame = b"".join(_native.encode_tfrecord({"x": bytes([9] * 4), "y": [float(at)]}) for at in range(5, 9))
    (changed / "part-2.tfrecord").write_bytes(frame)
    differs = run_cli(
        "audit-order", changed, "--ranks", "1", "--threads", "1", "--batch", 5, "--against", saved, "--json"
    )
    assert differs.code == 1
    step = json.loads(differs.out)["difference"]["step"]
    assert json.loads(differs.out)["steps"][:step] == found["steps"][:step]
    assert json.loads(differs.out)["steps"][step] != found["steps"][step]


@pytest.mark.parametrize(
    ("extra", "output"),
    [
        (["--seed", "1"], "they differ in seed: 1 and 0"),
        (["--window", "1"], "they differ in window: 1 and 16"),
        (["--steps", "2"], "they differ from step 2 on"),
        (["--epoch", "1"], "they differ in epoch: 1 and 0"),
    ],
)
def test_audit_order_of_another_order_says_what_differs(run_cli, tmp_path, extra, output):
    folder = write(tmp_path / "data", [2] * 6, packed=False)
    saved = tmp_path / "audit.json"
    common = ["audit-order", folder, "--ranks", "1", "--threads", "1", "--batch", 4]
    assert run_cli(*common, "--output", saved).code == 0
    done = run_cli(*common, *extra, "--against", saved)
    assert done.code == 1
    assert output in done.out


def test_audit_order_takes_fields_and_refuses_what_is_none(run_cli, tmp_path):
    folder = write(tmp_path / "data", [2] * 3, packed=False)
    common = ["audit-order", folder, "--ranks", "2", "--threads", "1", "--batch", 4]
    assert run_cli(*common, "--field", "x=int16:2").code == 0
    for text in ("x", "x=int16:a", "x=int16:-1", "jpg=image:224@jpg", "jpg=image:2.5"):
        refused = run_cli(*common, "--field", text)
        assert (refused.code, f"--field: `{text}` is not a valid field" in refused.err) == (2, True), refused.err
    assert run_cli("audit-order", folder, "--ranks", "0").code == 2
    nothing = tmp_path / "nothing.json"
    nothing.write_text("{}")
    assert run_cli(*common, "--against", nothing).code == 2

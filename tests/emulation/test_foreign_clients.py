# SPDX-License-Identifier: Apache-2.0
"""Tests round trips of third-party S3 clients through the emulator. The AWS CLI has its own file. Issue 19."""

from __future__ import annotations

import random

import pytest

from tests.emulation import clients

NAMES = {
    "plain.bin": 1000,
    "empty": 0,
    "with space/a b.bin": 10,
    "plus+sign+.bin": 11,
    "percent%20.bin": 12,
    "umlaut-äöü-ß.bin": 13,
    "deep/er/and=equal&and;more.bin": 14,
    # Clients upload and download this object in parts of 5 to 8 MiB (16 MiB for mc).
    "large.bin": 20_000_000,
}


def tree(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def round_trip(kind, served, tmp_path):
    source, back, work = tmp_path / "source", tmp_path / "back", tmp_path / "work"
    for name, size in NAMES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(random.Random(name).randbytes(size))
    want = tree(source)
    for folder in (back, work):
        folder.mkdir()
    client = kind(served, work)
    try:
        client.upload(source, "up/")
        assert client.keys("up/") == set(NAMES)
        assert tree(served.folder / "up") == want
        client.copy("up/", "copy/")
        assert tree(served.folder / "copy") == want
        client.download("copy/", back)
        assert tree(back) == want
        client.delete("up/")
        assert not (served.folder / "up").exists()
        assert client.keys("copy/") == set(NAMES)
    finally:
        client.close()


def test_boto3_round_trip_keeps_names_and_bytes(served, tmp_path):
    round_trip(clients.Boto3, served, tmp_path)


def test_copy_source_plus_is_a_space(served):
    """s5cmd encodes a space as `+` and a plus as `%2B`."""
    client = clients.Boto3(served, served.folder)
    client.s3.put_object(Bucket=served.bucket, Key="a b+c", Body=b"bytes")

    def write_source(request, **_):
        del request.headers["x-amz-copy-source"]
        request.headers["x-amz-copy-source"] = f"{served.bucket}/a+b%2Bc"

    client.s3.meta.events.register("before-sign.s3.CopyObject", write_source)
    client.s3.copy_object(Bucket=served.bucket, Key="copy", CopySource={"Bucket": served.bucket, "Key": "x"})
    assert (served.folder / "copy").read_bytes() == b"bytes"
    client.close()


@pytest.mark.needs_pool
@pytest.mark.parametrize("kind", [clients.S5cmd, clients.Rclone, clients.Mc, clients.S3fs], ids=lambda kind: kind.name)
def test_program_round_trip_keeps_names_and_bytes(kind, served, tmp_path):
    round_trip(kind, served, tmp_path)

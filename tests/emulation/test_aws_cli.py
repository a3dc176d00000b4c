# SPDX-License-Identifier: Apache-2.0
"""Tests the AWS CLI against the emulator, as its users run it."""

from __future__ import annotations

import random


def test_ls_shows_files_that_were_put_in_the_folder(served):
    (served.folder / "a").mkdir()
    (served.folder / "a" / "x y+z%.bin").write_bytes(b"12345")
    (served.folder / "top").write_bytes(b"")
    listed = served.aws("s3", "ls", served.url, "--recursive").stdout.splitlines()
    assert [line.split(None, 2)[2] for line in listed] == ["5 a/x y+z%.bin", "0 top"]
    assert "PRE a/" in served.aws("s3", "ls", served.url).stdout


def test_cp_recursive_there_and_back_is_the_same(served, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    # The largest file is uploaded in three parts and downloaded in three ranges.
    for name, size in (("one", 0), ("d/two", 1000), ("d/e/large", 17 << 20)):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(random.Random(name).randbytes(size))
    served.aws("s3", "cp", source, f"{served.url}up/", "--recursive", "--no-progress")
    served.aws("s3", "cp", f"{served.url}up/", back, "--recursive", "--no-progress")

    def tree(root):
        return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    assert tree(source) == tree(served.folder / "up") == tree(back)


def test_wrong_secret_wrong_key_and_no_signature_are_refused(served):
    (served.folder / "k").write_bytes(b"x")
    for output, argv, variables in (
        ("SignatureDoesNotMatch", (), {"AWS_SECRET_ACCESS_KEY": "wrong"}),
        ("InvalidAccessKeyId", (), {"AWS_ACCESS_KEY_ID": "AKUNKNOWN"}),
        ("AccessDenied", ("--no-sign-request",), {}),
    ):
        done = served.aws("s3", "ls", served.url, *argv, code=None, **variables)
        assert done.returncode != 0
        assert output in done.stderr
    assert served.server.stats()["denied"] == 3


def test_throttled_cli_gets_through(served, emulator, tmp_path):
    folder = tmp_path / "slow"
    folder.mkdir()
    for name in "abcdefghijklmnopqrstuvwxyz":
        (folder / name).write_bytes(name.encode())
    # 20,000 requests/s x 0.0006 = 12: the burst passes, and later requests are rejected until their retries succeed.
    slow = type(served)(folder, emulator(folder, tier="azure-hot", scale=0.0006))
    slow.aws(
        "s3",
        "cp",
        slow.url,
        tmp_path / "back",
        "--recursive",
        "--no-progress",
        AWS_MAX_ATTEMPTS="10",
        AWS_RETRY_MODE="standard",
    )
    assert {p.name for p in (tmp_path / "back").iterdir()} == set("abcdefghijklmnopqrstuvwxyz")
    assert slow.server.stats()["throttles_requests"] > 0


def test_rm_recursive_leaves_an_empty_folder(served):
    client = served.client()
    for key in ("a/b/c", "a/b", "z", "../up/"):
        client.put_object(Bucket=served.bucket, Key=key, Body=b"x")
    served.aws("s3", "rm", served.url, "--recursive")
    assert [p.name for p in served.folder.iterdir()] == [".penstock-emulator"]
    assert client.list_objects_v2(Bucket=served.bucket)["KeyCount"] == 0

# SPDX-License-Identifier: Apache-2.0
"""Tests objects whose only checksum is a checksum of part checksums: the bytes are checked against it. Issue 4."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib

import pytest
from liar import Liar, Lie
from stage_kit import facts, tree

MIB = 1 << 20
LARGE = os.urandom(20 * MIB)
SMALL = os.urandom(300_000)


def _crcs(body: bytes, part_bytes: int) -> tuple[bytes, int]:
    parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
    crcs = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    return zlib.crc32(crcs).to_bytes(4, "big"), len(parts)


def _crc_headers(body: bytes, part_bytes: int) -> dict[str, str]:
    value, parts = _crcs(body, part_bytes)
    result = f"{base64.b64encode(value).decode()}-{parts}"
    return {"x-amz-checksum-crc32": result, "x-amz-checksum-type": "COMPOSITE"}


def _md5_etag(body: bytes, part_bytes: int) -> str:
    parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
    md5s = b"".join(hashlib.md5(part).digest() for part in parts)
    return f"{hashlib.md5(md5s).hexdigest()}-{len(parts)}"


def _lie(body: bytes, part_bytes: int, kind: str, output: bytes | None = None, **more: object) -> Lie:
    output = body if output is None else output
    if kind == "md5":
        return Lie(body, etag=_md5_etag(output, part_bytes), part_bytes=part_bytes, **more)
    return Lie(body, etag="an etag", headers=_crc_headers(output, part_bytes), part_bytes=part_bytes, **more)


def _checked(folder):
    entries = json.loads((folder / ".penstock/manifest.json").read_text())["objects"]
    return {entry["key"]: entry["origin"]["checked"] for entry in entries}


def _upload(client, bucket: str, key: str, parts: list[bytes]) -> None:
    """Uploads part by part with botocore, as a third-party client."""
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="CRC32")
    where = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
    done = []
    for number, body in enumerate(parts, 1):
        part = client.upload_part(**where, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32")
        done.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]})
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": done})


@pytest.fixture(params=["emulator", pytest.param("versitygw", marks=pytest.mark.needs_s3)])
def peer(request, emulator):
    """(client, bucket, env) of our emulator and of a third-party store."""
    from awscli.botocore.config import Config
    from awscli.botocore.session import Session

    if request.param == "emulator":
        served = emulator()
        bucket, env = served.url.removeprefix("s3://").rstrip("/"), served.env
    else:
        gateway = request.getfixturevalue("versitygw")
        gateway.bucket("parts")
        bucket, env = "parts", gateway.env
    client = Session().create_client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 1, "mode": "standard"}),
    )
    return client, bucket, env


def test_stage_of_a_multipart_upload_is_checked_by_its_parts(peer, run_cli, tmp_path):
    client, bucket, env = peer
    sizes = {"large": [5 * MIB] * 3 + [MIB], "two": [5 * MIB, 77], "one": [1000]}
    bodies = {name: [os.urandom(size) for size in lens] for name, lens in sizes.items()}
    for name, parts in bodies.items():
        _upload(client, bucket, f"alike/{name}", parts)
    ran = run_cli("stage", f"s3://{bucket}/alike/", tmp_path / "dst", "--json", env=env)
    assert (ran.code, facts(ran)["without_checksum"]) == (0, 0), ran.err
    assert tree(tmp_path / "dst") == {name: b"".join(parts) for name, parts in bodies.items()}
    checked = _checked(tmp_path / "dst")
    starts = {name: f"crc32@{size}:" for name, size in (("large", 5 * MIB), ("two", 5 * MIB), ("one", 1000))}
    assert all(digests[0].startswith(starts[name]) for name, digests in checked.items()), checked
    assert checked["large"] == [starts["large"] + _crcs(b"".join(bodies["large"]), 5 * MIB)[0].hex()]
    off = run_cli("stage", f"s3://{bucket}/alike/", tmp_path / "off", "--json", env=env | {"PENSTOCK_S3_PARTS": "0"})
    assert (off.code, facts(off)["without_checksum"]) == (0, 2), "of one part, the whole is the part"


def test_stage_of_parts_that_are_not_alike_says_that_it_is_unchecked(peer, run_cli, tmp_path):
    client, bucket, env = peer
    bodies = {"a": [5 * MIB, 6 * MIB, 5 * MIB + 1], "b": [6 * MIB, 5 * MIB, 6 * MIB]}
    for name, lens in bodies.items():
        _upload(client, bucket, f"odd/{name}", [bytes(size) for size in lens])
    ran = run_cli("stage", f"s3://{bucket}/odd/", tmp_path / "dst", "--json", env=env)
    assert (ran.code, facts(ran)["without_checksum"]) == (0, 2), ran.err
    assert tree(tmp_path / "dst") == {name: bytes(sum(lens)) for name, lens in bodies.items()}


@pytest.mark.parametrize("kind", ["crc32", "md5"])
@pytest.mark.parametrize(("body", "part_bytes"), [(LARGE, 7 * MIB), (LARGE, 20 * MIB), (SMALL, 200_000)])
def test_bit_that_flips_on_the_way_to_a_multipart_upload_is_fetched_again(kind, body, part_bytes, run_cli, tmp_path):
    lie = _lie(body, part_bytes, kind, flips=1)
    with Liar({b"parts": lie}) as liar:
        ran = run_cli("stage", liar.url, tmp_path / "dst", "--json", env=liar.env)
    assert (ran.code, lie.flips, tree(tmp_path / "dst") == {"parts": body}) == (0, 0, True), ran.err
    assert (facts(ran)["refetched"], facts(ran)["without_checksum"]) == (1, 0)


@pytest.mark.parametrize("kind", ["crc32", "md5"])
@pytest.mark.parametrize("body", [LARGE, SMALL])
def test_multipart_upload_whose_bytes_are_not_its_checksums_is_corrupt(kind, body, run_cli, tmp_path):
    with Liar(
        {b"parts": _lie(body, 200_000, kind, output=body[:-1] + bytes([body[-1] ^ 1])), b"good": Lie(b"good")}
    ) as liar:
        ran = run_cli("stage", liar.url, tmp_path / "dst", "--json", env=liar.env)
        trusting = liar.env | {"PENSTOCK_S3_PARTS": "0"}
        trusted = run_cli("stage", liar.url, tmp_path / "trusted", "--json", env=trusting)
    assert [failure["code"] for failure in facts(ran)["failed"]] == ["corrupt"], ran.err
    assert (ran.code, tree(tmp_path / "dst")) == (1, {"good": b"good"})
    assert (trusted.code, facts(trusted)["without_checksum"]) == (0, 1)

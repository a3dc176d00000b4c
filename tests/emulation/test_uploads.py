# SPDX-License-Identifier: Apache-2.0
"""Tests multipart uploads to the emulator with botocore."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_multipart_rules_are_those_of_s3(s3, served):
    name = {"Key": "m", "UploadId": s3("create_multipart_upload", Key="m")["UploadId"]}
    tags = [s3("upload_part", **name, PartNumber=n, Body=b"x" * 1000)["ETag"] for n in (1, 2)]
    assert [part["Size"] for part in s3("list_parts", **name)["Parts"]] == [1000, 1000]
    assert [one["Key"] for one in s3("list_multipart_uploads")["Uploads"]] == ["m"]

    def complete(*parts):
        wanted = [{"PartNumber": number, "ETag": tag} for number, tag in parts]
        return s3("complete_multipart_upload", **name, MultipartUpload={"Parts": wanted})

    assert complete((1, tags[0]), (2, tags[1])) == "EntityTooSmall"
    assert complete((2, tags[1]), (1, tags[0])) == "InvalidPartOrder"
    assert complete((1, '"0123"')) == "InvalidPart"
    assert complete((2, tags[1]))["ETag"].endswith('-1"')
    assert (served.folder / "m").read_bytes() == b"x" * 1000
    other = {"Key": "n", "UploadId": s3("create_multipart_upload", Key="n")["UploadId"]}
    s3("upload_part", **other, PartNumber=1, Body=b"x")
    s3("abort_multipart_upload", **other)
    assert s3("upload_part", **other, PartNumber=2, Body=b"x") == "NoSuchUpload"
    assert list((served.folder / ".penstock-emulator" / "tmp").iterdir()) == []


@pytest.mark.parametrize("kind", ["FULL_OBJECT", "COMPOSITE"])
def test_multipart_checksum_is_of_the_kind_that_was_asked(s3, kind):
    bodies = [b"a" * (5 << 20), b"tail"]
    made = s3("create_multipart_upload", Key="m", ChecksumAlgorithm="CRC32", ChecksumType=kind)
    name = {"Key": "m", "UploadId": made["UploadId"]}
    sums = [zlib.crc32(body).to_bytes(4, "big") for body in bodies]
    parts = []
    for number, (body, crc) in enumerate(zip(bodies, sums, strict=True), 1):
        part = s3("upload_part", **name, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32")
        assert part["ChecksumCRC32"] == _b64(crc)
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]})
    whole = zlib.crc32(b"".join(bodies)).to_bytes(4, "big")
    want = _b64(whole) if kind == "FULL_OBJECT" else _b64(zlib.crc32(b"".join(sums)).to_bytes(4, "big")) + "-2"
    wrong = s3("complete_multipart_upload", **name, MultipartUpload={"Parts": parts}, ChecksumCRC32=_b64(bytes(4)))
    assert wrong == "BadDigest"
    done = s3("complete_multipart_upload", **name, MultipartUpload={"Parts": parts}, ChecksumCRC32=want)
    assert done["ChecksumCRC32"] == want
    head = s3("head_object", Key="m", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (want, kind)
    hashes = b"".join(hashlib.md5(body).digest() for body in bodies)
    assert head["ETag"] == f'"{hashlib.md5(hashes).hexdigest()}-2"'


def test_multipart_copy_takes_whole_objects_and_ranges(s3, served):
    body = bytes(range(256)) * (5 << 12) + b"tail"
    (served.folder / "source").write_bytes(body)
    made = s3("create_multipart_upload", Key="m", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    name = {"Key": "m", "UploadId": made["UploadId"]}
    source = {"CopySource": f"{served.bucket}/source"}

    def copy(number, **more):
        answer = s3("upload_part_copy", **name, **source, PartNumber=number, **more)
        return answer if isinstance(answer, str) else answer["CopyPartResult"]

    parts = [copy(1), copy(2, CopySourceRange=f"bytes={len(body) - 4}-{len(body) - 1}")]
    assert [part["ETag"] for part in parts] == [f'"{hashlib.md5(piece).hexdigest()}"' for piece in (body, b"tail")]
    assert parts[1]["ChecksumCRC32"] == _b64(zlib.crc32(b"tail").to_bytes(4, "big"))
    for bad in ("0-2", "bytes=0", "bytes=a-b", "bytes=0-", "bytes=3-2", "bytes=0-2,3-5", "bytes=+0-+2"):
        assert copy(3, CopySourceRange=bad) == "InvalidArgument", bad
    assert copy(3, CopySourceRange=f"bytes=0-{len(body)}") == "InvalidRange"
    assert copy(3, CopySourceIfMatch='"other"') == "PreconditionFailed"
    assert copy(10001) == "InvalidArgument"
    wanted = [{"PartNumber": n, "ETag": part["ETag"]} for n, part in enumerate(parts, 1)]
    done = s3("complete_multipart_upload", **name, MultipartUpload={"Parts": wanted})
    assert done["ChecksumCRC32"] == _b64(zlib.crc32(body + b"tail").to_bytes(4, "big"))
    assert (served.folder / "m").read_bytes() == body + b"tail"
    assert copy(1) == "NoSuchUpload"
    assert s3("upload_part_copy", **name, CopySource=f"{served.bucket}/absent", PartNumber=1) == "NoSuchUpload"


def test_parts_of_an_object_are_read_and_described_by_number(s3):
    bodies = [b"a" * (5 << 20), b"tail"]
    made = s3("create_multipart_upload", Key="m", ChecksumAlgorithm="SHA256")
    name = {"Key": "m", "UploadId": made["UploadId"]}
    assert made["ChecksumType"] == "COMPOSITE"
    parts = [
        s3("upload_part", **name, PartNumber=n, Body=body, ChecksumAlgorithm="SHA256")
        for n, body in enumerate(bodies, 1)
    ]
    sums = [_b64(hashlib.sha256(body).digest()) for body in bodies]
    wanted = [{"PartNumber": n, "ETag": part["ETag"]} for n, part in enumerate(parts, 1)]
    done = s3("complete_multipart_upload", **name, MultipartUpload={"Parts": wanted})
    assert done["ChecksumType"] == "COMPOSITE"
    for number, (body, value) in enumerate(zip(bodies, sums, strict=True), 1):
        got = s3("get_object", Key="m", PartNumber=number, ChecksumMode="ENABLED")
        assert (got["Body"].read(), got["PartsCount"], got["ETag"]) == (body, 2, done["ETag"])
        assert (got["ChecksumSHA256"], got["ChecksumType"]) == (value, "COMPOSITE")
    assert s3("get_object", Key="m", PartNumber=3) == "InvalidPart"
    attributes = ["ETag", "Checksum", "ObjectParts", "ObjectSize", "StorageClass"]
    about = s3("get_object_attributes", Key="m", ObjectAttributes=attributes)
    assert (about["ETag"], about["ObjectSize"]) == (done["ETag"].strip('"'), len(b"".join(bodies)))
    assert about["Checksum"] == {"ChecksumSHA256": done["ChecksumSHA256"], "ChecksumType": "COMPOSITE"}
    listed = about["ObjectParts"]
    assert (listed["TotalPartsCount"], listed["IsTruncated"]) == (2, False)
    assert [(part["Size"], part["ChecksumSHA256"]) for part in listed["Parts"]] == [
        (len(body), value) for body, value in zip(bodies, sums, strict=True)
    ]
    page = s3("get_object_attributes", Key="m", ObjectAttributes=["ObjectParts"], MaxParts=1)["ObjectParts"]
    assert (page["IsTruncated"], page["NextPartNumberMarker"], len(page["Parts"])) == (True, 1, 1)
    s3("put_object", Key="single", Body=b"1", ChecksumAlgorithm="SHA256")
    about = s3("get_object_attributes", Key="single", ObjectAttributes=attributes)
    assert about["Checksum"]["ChecksumSHA256"] == _b64(hashlib.sha256(b"1").digest())
    assert "ObjectParts" not in about
    assert s3("get_object", Key="single", PartNumber=1)["Body"].read() == b"1"
    assert s3("get_object", Key="single", PartNumber=2) == "InvalidPart"
    assert s3("get_object_attributes", Key="absent", ObjectAttributes=["ETag"]) == "NoSuchKey"


def test_multipart_completion_is_answered_again_until_the_object_changes(s3):
    name = {"Key": "m", "UploadId": s3("create_multipart_upload", Key="m")["UploadId"]}
    tag = s3("upload_part", **name, PartNumber=1, Body=b"1")["ETag"]
    wanted = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    first = s3("complete_multipart_upload", **name, MultipartUpload=wanted, IfNoneMatch="*")
    again = s3("complete_multipart_upload", **name, MultipartUpload=wanted, IfNoneMatch="*")
    assert {k: v for k, v in first.items() if k != "ResponseMetadata"} == {
        k: v for k, v in again.items() if k != "ResponseMetadata"
    }
    s3("put_object", Key="m", Body=b"2")
    assert s3("complete_multipart_upload", **name, MultipartUpload=wanted) == "NoSuchUpload"
    assert s3("get_object", Key="m")["Body"].read() == b"2"

# SPDX-License-Identifier: Apache-2.0
"""Tests the S3 behaviour of the emulator with botocore."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import urllib.error
import urllib.request

import pytest


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_put_object_etag_checksum_and_headers_come_back(s3):
    put = s3(
        "put_object",
        Key="k",
        Body=b"penstock",
        ChecksumAlgorithm="SHA256",
        ContentType="text/x",
        ContentEncoding="gzip",
        Metadata={"a": "b"},
    )
    assert put["ETag"] == f'"{hashlib.md5(b"penstock").hexdigest()}"'
    head = s3("head_object", Key="k", ChecksumMode="ENABLED")
    assert put["ChecksumSHA256"] == head["ChecksumSHA256"] == _b64(hashlib.sha256(b"penstock").digest())
    assert (head["ContentType"], head["ContentEncoding"], head["Metadata"]) == ("text/x", "gzip", {"a": "b"})


def test_head_found_file_gives_its_crc32c_when_asked(s3, served):
    (served.folder / "found").write_bytes(b"123456789")
    assert "ChecksumCRC32C" not in s3("head_object", Key="found")
    for verb in ("head_object", "get_object"):
        answer = s3(verb, Key="found", ChecksumMode="ENABLED")
        # The check value of CRC-32C for "123456789" (RFC 3720).
        assert answer["ChecksumCRC32C"] == _b64(bytes.fromhex("e3069283"))
        assert answer["ChecksumType"] == "FULL_OBJECT"
    assert "ChecksumCRC32C" not in s3("get_object", Key="found", ChecksumMode="ENABLED", Range="bytes=0-3")
    (served.folder / "found").write_bytes(b"12345678")
    changed = s3("head_object", Key="found", ChecksumMode="ENABLED")
    assert changed["ChecksumCRC32C"] != answer["ChecksumCRC32C"]


@pytest.mark.parametrize(
    "digest",
    [
        {"ContentMD5": _b64(hashlib.md5(b"other").digest())},
        {"ChecksumCRC32": _b64(bytes(4))},
        {"ChecksumSHA1": _b64(bytes(20))},
    ],
)
def test_put_object_digest_that_does_not_fit_is_refused(s3, served, digest):
    assert s3("put_object", Key="k", Body=b"penstock", **digest) == "BadDigest"
    assert s3("put_object", Key="k", Body=b"penstock", ContentMD5="nonsense") == "InvalidDigest"
    assert not (served.folder / "k").exists()
    assert list((served.folder / ".penstock-emulator" / "tmp").iterdir()) == []


HOSTILE = ["fd", "fd/x", "fd/", "a//b", "../up", "a/../b", "./c", "d/.", "tail/", " ", "+ %20", "ü/€", "n" * 300, "a/" * 511 + "ab", "\u0001ctl", "line\nfeed", "<&>\"'"]  # fmt: skip


def test_hostile_keys_are_held_listed_and_stay_inside(s3, served, tmp_path):
    for key in HOSTILE:
        s3("put_object", Key=key, Body=key.encode())
    in_order = sorted(HOSTILE, key=str.encode)
    listed, after = [], {}
    while True:
        page = s3("list_objects_v2", MaxKeys=3, **after)
        listed += [one["Key"] for one in page["Contents"]]
        if not page["IsTruncated"]:
            break
        after = {"ContinuationToken": page["NextContinuationToken"]}
    assert listed == in_order
    assert [one["Key"] for one in s3("list_objects", Marker=in_order[4])["Contents"]] == in_order[5:]
    assert [one["Key"] for one in s3("list_objects_v2", StartAfter="fd")["Contents"]] == [
        k for k in in_order if k > "fd"
    ]
    for key in HOSTILE:
        assert s3("get_object", Key=key)["Body"].read() == key.encode(), key
    assert {p.name for p in tmp_path.iterdir()} == {"bucket"}
    assert (served.folder / "fd").read_bytes() == b"fd"
    rolled = s3("list_objects_v2", Prefix="a/", Delimiter="/")
    assert [one["Prefix"] for one in rolled["CommonPrefixes"]] == ["a/../", "a//", "a/a/"]
    for key in HOSTILE:
        s3("delete_object", Key=key)
    assert s3("list_objects_v2")["KeyCount"] == 0


def test_key_beyond_1024_bytes_is_refused(s3):
    assert s3("put_object", Key="x" * 1025, Body=b"") == "KeyTooLongError"


def test_get_object_conditions_and_ranges_are_held(s3, served):
    (served.folder / "k").write_bytes(b"0123456789")
    tag = s3("head_object", Key="k")["ETag"]
    past, future = dt.datetime(2001, 1, 1, tzinfo=dt.UTC), dt.datetime(2199, 1, 1, tzinfo=dt.UTC)

    def get(**conditions):
        answer = s3("get_object", Key="k", **conditions)
        return answer if isinstance(answer, str) else answer["Body"].read()

    assert get(IfMatch=tag) == get(IfNoneMatch='"other"') == get(IfModifiedSince=past) == b"0123456789"
    assert get(IfMatch='"other"') == get(IfUnmodifiedSince=past) == "PreconditionFailed"
    assert get(IfNoneMatch=tag) == get(IfModifiedSince=future) == "304"
    assert get(IfMatch=tag, IfUnmodifiedSince=past) == b"0123456789"
    assert (get(Range="bytes=2-4"), get(Range="bytes=-3"), get(Range="bytes=8-99")) == (b"234", b"789", b"89")
    assert get(Range="bytes=10-") == "InvalidRange"
    (served.folder / "k").write_bytes(b"changed")
    assert get(IfMatch=tag) == "PreconditionFailed"
    assert s3("get_object", Key="gone") == "NoSuchKey"


def test_put_object_conditions_are_held(s3):
    assert s3("put_object", Key="k", Body=b"1", IfMatch='"any"') == "NoSuchKey"
    tag = s3("put_object", Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    assert s3("put_object", Key="k", Body=b"2", IfNoneMatch="*") == "PreconditionFailed"
    assert s3("put_object", Key="k", Body=b"2", IfMatch='"other"') == "PreconditionFailed"
    assert "ETag" in s3("put_object", Key="k", Body=b"2", IfMatch=tag)
    assert s3("get_object", Key="k")["Body"].read() == b"2"


def test_etag_is_the_same_in_list_head_and_get_and_survives_a_restart(s3, served, emulator):
    (served.folder / "found").write_bytes(b"1")
    s3("put_object", Key="put", Body=b"2")
    s3("put_object", Key="side/", Body=b"3")
    listed = {one["Key"]: one["ETag"] for one in s3("list_objects_v2")["Contents"]}
    assert set(listed) == {"found", "put", "side/"}
    again = type(served)(served.folder, emulator(served.folder)).client()
    for key, tag in listed.items():
        assert s3("head_object", Key=key)["ETag"] == s3("get_object", Key=key)["ETag"] == tag
        assert again.head_object(Bucket=served.bucket, Key=key)["ETag"] == tag


def test_copy_object_and_delete_objects(s3, served):
    s3("put_object", Key="a", Body=b"abc", ContentType="text/x")
    copied = s3("copy_object", Key="d/b", CopySource=f"{served.bucket}/a")["CopyObjectResult"]["ETag"]
    head = s3("head_object", Key="d/b")
    assert (head["ETag"], head["ContentType"], head["ContentLength"]) == (copied, "text/x", 3)
    gone = s3("delete_objects", Delete={"Objects": [{"Key": "a"}, {"Key": "d/b"}, {"Key": "never"}]})
    assert {one["Key"] for one in gone["Deleted"]} == {"a", "d/b", "never"}
    assert s3("list_objects_v2")["KeyCount"] == 0
    assert not (served.folder / "d").exists()


def test_delete_object_conditions_hold_for_one_and_for_many(s3):
    def put():
        s3("put_object", Key="k", Body=b"abc")
        head = s3("head_object", Key="k")
        return head["ETag"], head["LastModified"]

    past = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)
    tag, modified = put()
    for wrong in ({"IfMatch": '"other"'}, {"IfMatchLastModifiedTime": past}, {"IfMatchSize": 4}):
        assert s3("delete_object", Key="k", **wrong) == "PreconditionFailed"
    for wrong in ({"ETag": '"other"'}, {"LastModifiedTime": past}, {"Size": 4}):
        answer = s3("delete_objects", Delete={"Objects": [{"Key": "k", **wrong}, {"Key": "absent", **wrong}]})
        assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("k", "PreconditionFailed")]
        assert [one["Key"] for one in answer["Deleted"]] == ["absent"]
    assert s3("head_object", Key="k")["ETag"] == tag
    s3("delete_object", Key="k", IfMatch=tag, IfMatchLastModifiedTime=modified, IfMatchSize=3)
    assert s3("head_object", Key="k") == "404"
    tag, modified = put()
    right = {"Key": "k", "ETag": tag, "LastModifiedTime": modified, "Size": 3}
    assert [one["Key"] for one in s3("delete_objects", Delete={"Objects": [right]})["Deleted"]] == ["k"]
    put()
    s3("delete_object", Key="k", IfMatch="*")
    assert s3("list_objects_v2")["KeyCount"] == 0


def test_object_tags_are_kept_counted_copied_and_removed(s3, served, emulator):
    def tags(key, client=None):
        answer = (
            client.get_object_tagging(Bucket=served.bucket, Key=key) if client else s3("get_object_tagging", Key=key)
        )
        return {one["Key"]: one["Value"] for one in answer["TagSet"]}

    (served.folder / "found").write_bytes(b"1")
    s3("put_object", Key="k", Body=b"1", Tagging="a=1&b=2%20%C3%BC")
    s3("put_object_tagging", Key="found", Tagging={"TagSet": [{"Key": "x", "Value": "y"}]})
    assert (tags("k"), tags("found")) == ({"a": "1", "b": "2 ü"}, {"x": "y"})
    assert s3("head_object", Key="k")["TagCount"] == s3("get_object", Key="k")["TagCount"] == 2
    again = type(served)(served.folder, emulator(served.folder)).client()
    assert (tags("k", again), tags("found", again)) == (tags("k"), tags("found"))
    source = f"{served.bucket}/k"
    s3("copy_object", Key="same", CopySource=source)
    s3("copy_object", Key="new", CopySource=source, Tagging="c=3", TaggingDirective="REPLACE")
    assert (tags("same"), tags("new")) == (tags("k"), {"c": "3"})
    s3("delete_object_tagging", Key="k")
    assert tags("k") == {}
    assert s3("put_object_tagging", Key="absent", Tagging={"TagSet": []}) == "NoSuchKey"
    twice = {"TagSet": [{"Key": "a", "Value": "1"}] * 2}
    assert s3("put_object_tagging", Key="new", Tagging=twice) == s3("put_object", Key="k", Tagging="=v") == "InvalidTag"
    assert tags("new") == {"c": "3"}


def test_copy_object_to_itself_must_change_something(s3, served):
    s3("put_object", Key="k", Body=b"abc", Metadata={"a": "1"}, Expires=dt.datetime(2199, 1, 1, tzinfo=dt.UTC))
    assert s3("head_object", Key="k")["ExpiresString"] == "Tue, 01 Jan 2199 00:00:00 GMT"
    source = f"{served.bucket}/k"
    assert s3("copy_object", Key="k", CopySource=source) == "InvalidRequest"
    s3("copy_object", Key="k", CopySource=source, Metadata={"a": "2"}, MetadataDirective="REPLACE")
    got = s3("get_object", Key="k")
    assert (got["Body"].read(), got["Metadata"]) == (b"abc", {"a": "2"})
    past = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)
    assert s3("copy_object", Key="b", CopySource=source, CopySourceIfUnmodifiedSince=past) == "PreconditionFailed"


def test_link_out_of_the_folder_is_no_object(s3, served, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (served.folder / "out").symlink_to(tmp_path / "secret")
    (served.folder / "dir").symlink_to(tmp_path)
    assert s3("get_object", Key="out") == s3("get_object", Key="dir/secret") == "NoSuchKey"
    s3("put_object", Key="dir/mine", Body=b"x")
    s3("put_object", Key="out", Body=b"mine")
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "mine").exists()
    assert s3("get_object", Key="dir/mine")["Body"].read() == b"x"


def test_bucket_missing_is_reported(served):
    client = served.client()
    assert [one["Name"] for one in client.list_buckets()["Buckets"]] == [served.bucket]
    assert client.get_bucket_location(Bucket=served.bucket)["LocationConstraint"] is None
    with pytest.raises(client.exceptions.ClientError, match="NoSuchBucket"):
        client.list_objects_v2(Bucket="other")
    with pytest.raises(client.exceptions.ClientError, match="404"):
        client.head_bucket(Bucket="other")


def test_signed_request_may_be_dated_by_its_date_header(served):
    client = served.client()

    def add_date(params, **_):
        params["headers"]["Date"] = "now"  # the signer writes the time here instead of X-Amz-Date

    client.meta.events.register("before-call.s3.PutObject", add_date)
    client.put_object(Bucket=served.bucket, Key="k", Body=b"1")
    assert (served.folder / "k").read_bytes() == b"1"


def test_requests_signed_by_version_2_are_accepted(served):
    client = served.client(signature_version="s3")
    client.put_object(Bucket=served.bucket, Key="k", Body=b"1")
    assert client.get_object(Bucket=served.bucket, Key="k")["Body"].read() == b"1"


def _get(served, key, expires=600):
    """Status, headers and body of a presigned GET."""
    client = served.client(signature_version="s3v4")
    params = {"Bucket": served.bucket, "Key": key}
    url = client.generate_presigned_url("get_object", Params=params, ExpiresIn=expires)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_presigned_url_that_is_expired_or_lives_too_long_is_denied(served):
    (served.folder / "k").write_bytes(b"1")
    answers = [_get(served, "k", expires)[0] for expires in (600, 604800, 604801, -7)]
    assert answers == [200, 200, 403, 403]


def test_answers_have_a_request_id_and_errors_repeat_it(served):
    (served.folder / "k").write_bytes(b"1")
    status, headers, body = _get(served, "absent")
    assert (status, b"<Code>NoSuchKey</Code>" in body) == (404, True)
    assert f"<RequestId>{headers['x-amz-request-id']}</RequestId>".encode() in body
    assert _get(served, "k")[1]["x-amz-request-id"] != headers["x-amz-request-id"]


def test_list_with_empty_delimiter_or_token_is_a_plain_list_with_owners(s3):
    for key in ("a/b", "c"):
        s3("put_object", Key=key, Body=b"1")
    old, new = s3("list_objects", Delimiter=""), s3("list_objects_v2", Delimiter="", ContinuationToken="")
    for page in (old, new):
        assert [one["Key"] for one in page["Contents"]] == ["a/b", "c"]
        assert "Delimiter" not in page
    assert new["ContinuationToken"] == ""
    owner = old["Contents"][0]["Owner"]
    assert "Owner" not in new["Contents"][0]
    assert s3("list_objects_v2", FetchOwner=True)["Contents"][0]["Owner"] == owner


def test_bucket_cannot_be_deleted(s3, served):
    assert s3("delete_bucket") == "AccessDenied"
    (served.folder / "k").write_bytes(b"1")
    assert s3("delete_bucket") == "BucketNotEmpty"
    with pytest.raises(served.client().exceptions.ClientError, match="NoSuchBucket"):
        served.client().delete_bucket(Bucket="other")
    assert "ResponseMetadata" in s3("create_bucket")

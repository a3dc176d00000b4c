# SPDX-License-Identifier: Apache-2.0
"""Tests features for large stages: patterns, share weights, grouping by name (study A), Parquet manifests, rates and
prices (issue 4, points 4, 5, 6 and 8).
"""

from __future__ import annotations

import json

import pytest
from stage_kit import facts, tree


@pytest.fixture
def groups(tmp_path):
    """A folder of 2 x 16 objects in 16 groups, named as in study A, and one file that is not a sample."""
    folder = tmp_path / "groups"
    folder.mkdir()
    for at in range(32):
        name = f"univ_ics_2019-03_a{1_000_000 + at // 16:07}_{at % 16:03}.tfrecord"
        (folder / name).write_bytes(b"x" * (at + 1))
    (folder / "README").write_bytes(b"about")
    return folder


def test_stage_takes_what_patterns_of_url_and_flags_mean(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url + "d/*.gz", tmp_path / "a", "--exclude", "f00?.*", "--json", env=bucket.env)
    assert ran.code == 0, ran.err
    want = {p.name for p in (bucket.folder / "set/d").glob("*.gz")} - {
        p.name for p in (bucket.folder / "set/d").glob("f00?.*")
    }
    assert set(tree(tmp_path / "a")) == want
    ran = run_cli("stage", bucket.url, tmp_path / "b", "--select", "f000*", "--select", "d/f01?.bin", env=bucket.env)
    assert set(tree(tmp_path / "b")) == {
        f"d/{p.name}"
        for p in (bucket.folder / "set/d").iterdir()
        if p.name.startswith("f000") or (p.name.startswith("f01") and p.suffix == ".bin")
    }
    ran = run_cli("stage", bucket.url, tmp_path / "c", "--select", "nothing*", env=bucket.env)
    assert (ran.code, "matches --select nothing*" in ran.err) == (3, True), ran.err
    assert facts(run_cli("index", bucket.url + "d/*.gz", "--json", env=bucket.env))["codecs"].keys() == {"gzip"}


def test_stage_by_the_published_rule_gives_groups_to_nodes(groups, run_cli, tmp_path):
    seen = {}
    for node in range(4):
        dst = tmp_path / f"n{node}"
        flags = ("--share-by", "name:*_{}.tfrecord", "--exclude", "README", "--node", node, "--nodes", 4)
        assert run_cli("stage", groups, dst, *flags).code == 0
        seen[node] = tree(dst)
        assert {int(name.split("_")[-1][:3]) // 4 for name in seen[node]} == {node}
    assert sum(map(len, seen.values())) == 32


def test_stage_weights_are_the_shares(groups, run_cli, tmp_path):
    (tmp_path / "w").write_text("1\n3\n")
    for weights in ("1,3", f"@{tmp_path / 'w'}"):
        flags = ("--dry-run", "--json", "--node", 0, "--nodes", 2, "--weights", weights)
        shares = facts(run_cli("stage", groups, "x", *flags))["shares"]
        assert shares[1] / sum(shares) == pytest.approx(0.75, abs=0.02)
    ran = run_cli("stage", groups, "x", "--dry-run", "--node", 0, "--nodes", 2, "--weights", "1,2,3")
    assert (ran.code, "got 3 weights, but the job has 2 nodes" in ran.err) == (2, True), ran.err


def test_manifest_as_parquet_is_taken_wherever_json_is(bucket, run_cli, tmp_path):
    made = tmp_path / "m.parquet"
    ran = run_cli("index", bucket.url, "-o", made, "--json", env=bucket.env)
    assert (facts(ran)["format"], made.read_bytes()[:4]) == ("parquet", b"PAR1")
    assert run_cli("index", bucket.url, "-o", tmp_path / "m", "--format", "json", env=bucket.env).code == 0
    assert run_cli("diff", made, tmp_path / "m", env=bucket.env).code == 0
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--manifest", made, "--json", env=bucket.env)
    assert (ran.code, tree(tmp_path / "dst")) == (0, bucket.want), ran.err
    # That stage's record is also a manifest of the source, and contains the checksums of the inflated content.
    record = tmp_path / "dst/.penstock/manifest.json"
    ran = run_cli(
        "stage", bucket.url, tmp_path / "again", "--decompress", "--manifest", record, "--json", env=bucket.env
    )
    assert (ran.code, facts(ran)["without_checksum"], tree(tmp_path / "again")) == (0, 0, bucket.want), ran.err


@pytest.mark.parametrize("harm", ["cut", "flip", "not"])
def test_manifest_that_is_damaged_is_one_clear_error(bucket, run_cli, tmp_path, harm):
    made = tmp_path / "m.parquet"
    run_cli("index", bucket.url, "-o", made, env=bucket.env)
    raw = made.read_bytes()
    if harm == "not":
        made.write_bytes(b"PAR1" + b"?" * 100)
    else:
        made.write_bytes(raw[:-20] if harm == "cut" else raw[:99] + bytes([raw[99] ^ 1]) + raw[100:])
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--manifest", made, env=bucket.env)
    assert (ran.code, ran.err.count("error[corrupt]"), "m.parquet" in ran.err) == (1, 1, True), ran.err


def test_manifest_that_promises_other_content_fails_the_object(bucket, run_cli, tmp_path):
    run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", env=bucket.env)
    record = json.loads((tmp_path / "dst/.penstock/manifest.json").read_text())
    lying = next(entry for entry in record["objects"] if entry["origin"].get("decoded"))
    lying["digests"] = ["crc32c:00000000"]
    (tmp_path / "lie.json").write_text(json.dumps(record))
    flags = ("--decompress", "--manifest", tmp_path / "lie.json", "--json")
    ran = run_cli("stage", bucket.url, tmp_path / "again", *flags, env=bucket.env)
    found = facts(ran)
    assert (ran.code, [failure["key"] for failure in found["failed"]]) == (1, [lying["origin"]["key"]])


def test_dry_run_says_money_and_the_date_of_its_price(bucket, run_cli, tmp_path):
    flags = ("--dry-run", "--node", 1, "--nodes", 3, "--max-bytes-per-s", "1kB/s")
    found = facts(run_cli("stage", bucket.url, "x", *flags, "--json", env=bucket.env))
    money = found["money"]
    assert money["tier"] == "s3-standard"
    assert money["requests_usd"] == pytest.approx(found["objects_total"] * 0.0004 / 1000)
    assert found["eta_s"] == pytest.approx(sum(found["shares"]) / 1000)
    assert len(found["share_requests"]) == len(money["node_requests_usd"]) == 3
    result = run_cli("stage", bucket.url, "x", *flags, "--price-tier", "azure-hot", env=bucket.env).out
    assert "azure-hot" in result
    assert "prices as of 20" in result
    assert max(map(len, result.splitlines())) <= 80
    ran = run_cli("stage", bucket.url, "x", "--dry-run", "--price-tier", "tape", env=bucket.env)
    assert (ran.code, "--price-tier" in ran.err) == (2, True), ran.err
    assert facts(run_cli("stage", bucket.folder, "x", "--dry-run", "--json"))["money"] is None


def test_stage_of_a_store_that_refuses_finds_its_rate_and_loses_nothing(emulator, run_cli, tmp_path):
    from stage_kit import fill

    folder = tmp_path / "bucket"
    want = fill(folder, 64, 4_000)
    served = emulator(folder=folder, tier="s3-standard", scale=0.004)  # 22 reads per second and prefix
    url = f"{served.url.rstrip('/')}/set/"
    ran = run_cli("stage", url, tmp_path / "dst", "--decompress", "--json", env=served.env)
    assert (ran.code, tree(tmp_path / "dst")) == (0, want), ran.err
    found = facts(ran)
    assert found["throttles"] > 0
    # Below its rate limit, the store rejects no request.
    flags = ("--decompress", "--json", "--max-requests-per-s", "10")
    ran = run_cli("stage", url, tmp_path / "calm", *flags, env=served.env)
    assert (ran.code, tree(tmp_path / "calm")) == (0, want), ran.err
    assert facts(ran)["throttles"] == 0


def test_stage_rates_that_move_nothing_are_usage_errors(bucket, run_cli, tmp_path):
    for flags in (("--max-requests-per-s", "0"), ("--max-bytes-per-s", "0")):
        assert run_cli("stage", bucket.url, tmp_path / "dst", *flags, env=bucket.env).code == 2


def test_object_that_is_late_fails_alone(slow_bucket, run_cli, tmp_path):
    flags = ("--object-timeout", "1ms", "--json")
    ran = run_cli("stage", slow_bucket.url, tmp_path / "dst", *flags, env=slow_bucket.env)
    found = facts(ran)
    assert (ran.code, {failure["code"] for failure in found["failed"]}) == (1, {"deadline"}), ran.err
    assert found["moved"] + len(found["failed"]) == 96

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench object` against HDFS. Issue 6, point 2."""

from __future__ import annotations

import json


def test_object_existing_files_of_hdfs_are_read_whole_and_in_ranges(hdfs, run_cli):
    for number in range(4):
        hdfs.put(f"/bench/part-{number}", bytes(40_000))
    ran = run_cli(
        "bench", "object", f"{hdfs.url}/bench/", "--existing", "--operations", "get,range,list,head", "--range-size", "4KiB",
        "--request-limit", "8", "--concurrency", "2", "--json", env=hdfs.env,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["raw"]["request"]: row for row in json.loads(ran.out)["rows"]}
    assert (rows["get"]["last"]["entries"], rows["get"]["last"]["bytes"]) == (8, 8 * 40_000)
    assert rows["range"]["last"]["bytes"] == 8 * 4096
    assert {rows[name]["last"]["entries"] for name in ("list", "head")} == {8}


def test_object_bench_that_would_write_to_hdfs_makes_and_removes_its_own(hdfs, run_cli):
    hdfs.put("/writes/theirs", b"not ours")
    ran = run_cli(
        "bench", "object", f"{hdfs.url}/writes/", "--size", "64KiB", "--objects", "6", "--concurrency", "2", "--verify", "3",
        "--operations", "put,get,delete", "--json", env=hdfs.env,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["raw"]["request"]: row for row in json.loads(ran.out)["rows"]}
    assert rows["get"]["raw"]["verified_bytes"] == str(6 * 65536)

# SPDX-License-Identifier: Apache-2.0
"""Tests that a trace follows the rules of the Trace Event Format."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.errors import PenstockError
from penstock.train import TrainSpec, run

SETTINGS = {"voxels": 32, "filters": 2, "base_batch": 8}
FIELDS = {
    "workload": "cosmoflow",
    "data": "dummy://80",
    "global_batch": 4,
    "settings": SETTINGS,
    "threads": 1,
}


def checked(file):
    """Read a trace; check the format's rules for each event and its nesting; return the complete events."""
    document = json.loads(file.read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    complete, named = [], set()
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name"}
            assert isinstance(event["args"]["sort_index" if "sort" in event["name"] else "name"], int | str)
            named.add((event["name"], event["pid"]))
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            complete.append(event)
    for pid in {event["pid"] for event in complete}:
        assert ("process_name", pid) in named
        stack = []
        for event in sorted((e for e in complete if e["pid"] == pid), key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1] <= event["ts"] + 0.002:
                stack.pop()
            # Events of one thread must lie inside each other or apart; 2 ns are the rounding of the file.
            assert not stack or event["ts"] + event["dur"] <= stack[-1] + 0.002, event
            stack.append(event["ts"] + event["dur"])
    return complete


@pytest.mark.needs_torch
def test_trace_of_two_ranks_has_their_steps_and_nested_parts(tmp_path):
    result = run(TrainSpec(**FIELDS, ranks=2, trace=str(tmp_path / "trace.json")))
    events = checked(tmp_path / "trace.json")
    for rank in (0, 1):
        mine = [event for event in events if event["pid"] == rank]
        steps = [event["name"] for event in mine if event["cat"] == "step"]
        assert steps == [f"step {n}" for n in range(1, 21)]
        # The breakdown leaves the first step out.
        compute_us = sum([event["dur"] for event in mine if event["name"] == "compute"][1:])
        expected_s = result["step_breakdown"]["ranks"][rank]["compute_s"]
        assert compute_us / 19 == pytest.approx(1e6 * expected_s, rel=1e-3)
    assert any(event["name"] == "exposed communication" for event in events)
    # Both clocks start at the same exchange, and both ranks wait for each other in each step.
    first = [next(event["ts"] for event in events if event["pid"] == rank) for rank in (0, 1)]
    assert abs(first[0] - first[1]) < 2e6


def test_trace_of_an_emulated_accelerator_keeps_parts_inside_steps(tmp_path):
    spec = TrainSpec(**{**FIELDS, "threads": None}, accelerator="h100", trace=str(tmp_path / "trace.json"))
    run(spec)
    names = {event["name"] for event in checked(tmp_path / "trace.json")}
    assert "compute" in names


def test_trace_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    spec = TrainSpec(**{**FIELDS, "threads": None}, accelerator="h100", trace=str(tmp_path / "file" / "trace.json"))
    reported = []
    with pytest.raises(PenstockError, match=r"trace\.json cannot be written"):
        run(spec, report=reported.append)
    assert reported == []  # before the run


def test_trace_is_created_in_a_new_folder_and_an_earlier_one_stays_if_the_run_fails(tmp_path):
    file = tmp_path / "new" / "trace.json"
    spec = TrainSpec(**{**FIELDS, "threads": None}, accelerator="h100", trace=str(file))
    run(spec)
    before = file.read_bytes()
    with pytest.raises(PenstockError):
        run(msgspec.structs.replace(spec, data="dummy://1"))
    assert [file.read_bytes(), *file.parent.iterdir()] == [before, file]

# SPDX-License-Identifier: Apache-2.0
"""Tests of a whole plan: frontier, target, break-even, the log of predictions, and the comparison with runs."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import resource
import signal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.results import load as load_run
from penstock.errors import ConfigError, Corrupt, NotFound, SystemFault
from penstock.plan import prediction_log
from penstock.plan.analysis import best, choose, frontier, parse_target
from penstock.plan.check import check, markdown
from penstock.plan.predict import Money, ScenarioPrediction
from penstock.plan.result import as_json, make_plan
from penstock.plan.spec_file import parse
from penstock.price.book import load
from tests.plan.test_predict import CARD

TODAY = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
BOOK = load()


def row(hours, money, **more):
    return ScenarioPrediction(
        path="p", machine="m", nodes=1, accelerators=1, step_s=1.0, samples_per_s=100.0, limited_by="compute",
        terms_s={}, first_epoch_s=1.0, epoch_s=1.0, stage_s=0.0, stage_limited_by="", stage_terms_s={}, before_s=0.0,
        run_s=hours * 3600, lost_s=0.0, job_s=hours * 3600, wait_share=0.0, bytes_read=0.0, requests=0.0,
        money=Money("USD", money, 0.0, 0.0, 0.0), **more,
    )  # fmt: skip


def plan(document, **changes):
    return make_plan(parse({**document, **changes}), BOOK, TODAY)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def prop_frontier_is_what_no_other_row_beats(points):
    rows = [row(hours, money) for hours, money in points]
    expected = {
        index
        for index, (hours, money) in enumerate(points)
        if not any(h <= hours and m <= money and (h, m) != (hours, money) for h, m in points)
    }
    assert frontier(rows) == expected


test_frontier_is_what_no_other_row_beats = prop_frontier_is_what_no_other_row_beats


def test_frontier_leaves_out_rows_that_are_impossible_or_have_no_price():
    assert frontier([row(1, 1, impossible="disk"), row(2, None), row(3, 3)]) == {2}


def test_best_of_equal_cost_is_the_faster_one():
    slow, fast = row(2, 5), row(1, 5)
    assert best([slow, fast], "cost") is fast


def test_target_takes_the_cheapest_or_the_fastest_row_that_reaches_it(document):
    result = plan(document, nodes="1..64")
    rows = [each.prediction for each in result.rows]
    target = parse_target("3000 samples/s", "samples")
    cheap, _ = choose(rows, target, "cost")
    fast, _ = choose(rows, target, "time")
    reaching = [each for each in rows if each.samples_per_s >= 3000]
    assert cheap.money.total == min(each.money.total for each in reaching)
    assert fast.finish_s == min(each.finish_s for each in reaching)


def test_target_that_no_row_reaches_gives_the_nearest(document):
    rows = [each.prediction for each in plan(document).rows]
    found, near = choose(rows, parse_target("1 min", "samples"), "cost")
    assert found is None
    assert near.finish_s == min(each.finish_s for each in rows)


@pytest.mark.parametrize("text", ["20000 images", "0/s", "fast", "-3h", "5 volumes/s"])
def test_target_that_is_no_rate_or_time_is_refused(text):
    with pytest.raises(ConfigError, match="target"):
        parse_target(text, "images")


def test_plan_that_no_path_can_satisfy_names_the_limit(document):
    document["machine"][0]["disk"] = "0.5TB"
    document["path"] = [path for path in document["path"] if path["kind"] == "pool"]
    with pytest.raises(ConfigError, match=r"no path of this plan is possible: .*the nodes' disks") as caught:
        plan(document)
    assert "raise the limit" in caught.value.hint


def test_plan_answer_frontier_and_old_prices(document):
    result = plan(document, nodes="4,40")
    assert result.answer.startswith("Cheapest")
    assert "older than 12 months" in result.dates
    assert any(each.on_frontier for each in result.rows)
    pool = [point for point in result.break_even if point.nodes == 40 and point.path == "gzip pool"]
    assert pool[0].from_epochs is not None
    one = [point for point in result.break_even if point.nodes == 4 and point.path == "gzip pool"]
    assert one[0].from_epochs is None  # STUDIES A: 4 nodes need no pool


def test_plan_json_has_totals_and_no_missing_price_as_zero(document):
    del document["machine"][0]["price"]
    plain = json.loads(as_json(plan(document)))
    assert plain["schema_version"] == 1
    assert all(each["prediction"]["money"]["total"] is None for each in plain["rows"])
    assert any("no price" in text for text in plain["unknown"])


def test_plan_states_the_source_of_each_limit_and_which_are_doubtful(document):
    document["store"][0]["tier"] = "gcs-standard"
    result = plan(document)
    assert any("read-bytes of one account, 25.0 GB/s, unverified" in text for text in result.limits)
    assert any("hot: read-bytes of one account (25.0 GB/s) is not verified" in text for text in result.doubts)
    document["store"][0]["account"] = "50Gbit/s"
    assert not any("read-bytes" in text for text in plan(document).doubts)


def test_plan_does_not_doubt_a_request_limit_that_the_file_replaces(document, tmp_path):
    card = tmp_path / "card.toml"
    card.write_text(CARD.replace("read-bytes", "read-requests").replace("bytes/s", "requests/s"))
    document["store"][0] |= {"tier": f"{card}#mine", "account": "50Gbit/s"}
    assert any("read-requests of one account" in text for text in plan(document).doubts)
    document["store"][0]["requests"] = 5000
    assert not any("read-requests" in text for text in plan(document).doubts)


def append_some(folder, document):
    prediction_log.append(prediction_log.rows_of(plan(document)), Path(folder))


def test_log_is_appended_by_several_processes_without_losing_a_line(document, tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=append_some, args=(str(tmp_path), document)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rows = prediction_log.read(tmp_path)
    assert len(rows) == 2 * len(document["path"])
    assert len({each.id for each in rows}) == len(rows)


def test_log_keeps_earlier_predictions_and_skips_a_torn_last_line(document, tmp_path):
    append_some(tmp_path, document)
    first = prediction_log.read(tmp_path)
    with (tmp_path / prediction_log.LOG).open("ab") as out:
        out.write(b'{"id":"x","pl')
    assert prediction_log.read(tmp_path) == first
    append_some(tmp_path, document)
    rows = prediction_log.read(tmp_path)
    assert rows[: len(first)] == first
    assert len(rows) == 2 * len(first)


def test_log_that_cannot_be_written_whole_has_none_of_the_rows(document, tmp_path):
    append_some(tmp_path, document)
    log = tmp_path / prediction_log.LOG
    before = log.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 600, limits[1]))
    try:
        with pytest.raises(SystemFault):
            append_some(tmp_path, document)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert log.read_bytes() == before


def test_log_missing_broken_or_newer_is_an_error(tmp_path):
    with pytest.raises(NotFound) as caught:
        prediction_log.read(tmp_path)
    assert "before you measure" in caught.value.hint
    log = tmp_path / prediction_log.LOG
    log.write_text('{"schema_version": 9}\n')
    with pytest.raises(Corrupt, match="schema version 9"):
        prediction_log.read(tmp_path)
    log.write_text('{"schema_version": 1}\n')
    with pytest.raises(Corrupt, match="line 1 is not a prediction"):
        prediction_log.read(tmp_path)


@pytest.fixture
def runs(document, tmp_path):
    """A log with predictions for 1 rank, then two real runs of `penstock train`, one with a label of a path."""
    from penstock.train import TrainSpec, run

    document["machine"][0]["accelerators"] = 1
    document["nodes"] = 1
    append_some(tmp_path, document)
    for label in ("stream gzip", "elsewhere"):
        run(
            TrainSpec(
                workload="cosmoflow", data="dummy://16", global_batch=4, settings={"voxels": 32}, accelerator="h100",
                label=label, runs=str(tmp_path), allow_debug=True,
            )
        )  # fmt: skip
    return tmp_path


def test_check_matches_runs_by_label_and_reports_the_error(runs):
    found = check([runs])
    assert [each.path for each in found.rows] == ["stream gzip"]
    one = found.rows[0]
    record = load_run(runs / one.run)
    assert one.measured_epoch_s == record.epoch_times[0]["wall_s"]
    assert one.measured_epoch_s > 0.9 * 4 * 0.014  # 4 steps of an emulated H100 at batch 4
    assert one.error == pytest.approx(one.predicted_epoch_s / one.measured_epoch_s - 1)
    assert found.worst_error == abs(one.error)
    assert any("no prediction for `elsewhere`" in text for text in found.skipped)
    assert "stream gzip" in markdown(found)


def test_check_never_uses_a_prediction_that_was_made_after_the_run(runs):
    log = runs / prediction_log.LOG
    later = [msgspec.structs.replace(each, created="2099-01-01T00:00:00Z") for each in prediction_log.read(runs)]
    log.unlink()
    prediction_log.append(later, runs)
    with pytest.raises(ConfigError, match="logged after the run had begun"):
        check([runs])


def test_check_of_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(NotFound, match="contains no runs"):
        check([tmp_path])


def test_thousand_configurations_are_all_predicted(document):
    result = plan(document, nodes="1..167")
    assert len(result.rows) == 6 * 167


def test_check_of_the_saved_runs_gives_the_published_errors_which_reach_the_goal():
    root = Path(__file__).resolve().parents[2]
    found = check([root / "results/2026-11-24/plan-paths"])
    assert len({each.path for each in found.rows}) >= 4
    assert found.median_error <= 0.10
    assert found.worst_error <= 0.20
    guide = (root / "docs/guides/plan.md").read_text()
    for each in found.rows:
        assert f"| {each.path} | {each.predicted_epoch_s:.2f} s | {each.measured_epoch_s:.2f} s |" in guide
    assert f"median {100 * found.median_error:.1f} %, worst {100 * found.worst_error:.1f} %" in guide

# SPDX-License-Identifier: Apache-2.0
"""Tests the page of measured phases: it needs only rows, is complete and escaped, and a browser can draw it.

Also tests its images.
"""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from penstock.bench.importers.elbencho import render
from penstock.bench.rows import CacheState, Latency, Results, Row, Sample, write_results
from penstock.report.image_export import export_images
from penstock.report.sweep import summarise
from penstock.report.sweep_charts import sweep_charts
from penstock.report.sweep_page import sweep_page
from tests.bench.sweeps import MIB, Storage, make, row
from tests.report.test_page import BROWSER, Addresses, opened


def rich(one: Row, number: int) -> Row:
    """A copy of the row with values for everything that can be drawn."""
    mean = one.threads / one.last.entries_per_s * 1e6
    return msgspec.structs.replace(
        one,
        entry_latency=Latency(
            min_us=mean / 2, mean_us=mean, max_us=9 * mean, percentiles_us={"50": mean, "99.9": 8 * mean}
        ),
        series=tuple(
            Sample(at_s=t / 2, bytes_per_s=1e9 + 1e7 * t, ios_per_s=900.0 + t, throttles=3 if t == 4 else 0)
            for t in range(9)
        ),
        limits={"bytes_per_s": 1.2e9, "ios_per_s": 1000.0},
        lost_s_by_cause={"transfer": 5.0, "back-off": 1.0 + number},
        cache=CacheState("cold", "dropped before the phase"),
        prices_as_of=("2024-07",),
    )


@pytest.fixture(scope="module")
def results():
    storage = Storage("queues", 3e-3, 8e8, 6_000, 12e9, contention=0.15)
    rows = make(storage, [1, 8, 32, 128], [262144, MIB, 64 * MIB], noise=0.03).rows
    rows = [rich(r, i) if i % 5 == 0 else r for i, r in enumerate(rows)]
    rows += [row("STAT", c, MIB, min(c / 1e-3, 9_000)) for c in (1, 8, 32)]
    broken = msgspec.structs.replace(rows[0], invalid=("killed host",))
    return Results(rows=(*rows, broken), spec={"threads": [1, 8]})


@pytest.fixture(scope="module")
def made(results):
    return sweep_page(summarise(results), results.rows)


def test_summary_says_peak_limits_and_doubts(results):
    result = summarise(results)
    assert re.match(r"Read peaks at 1\d\.\d GB/s, with (32|128) threads and 64\.0 MiB files", result.headline)
    assert [g.title for g in result.groups] == ["READ", "STAT"]
    assert result.groups[0].retrograde >= 1
    assert result.invalid == {"killed host": 1}
    assert result.prices_as_of == ("2024-07",)
    assert sum(g.regimes[r] for g in result.groups for r in g.regimes) == 15


def test_summary_of_nothing_sound_says_so(results):
    result = summarise(Results(rows=tuple(msgspec.structs.replace(r, invalid=("x",)) for r in results.rows)))
    assert result.headline == "Nothing here can be classified"
    assert sweep_page(result, results.rows)


@pytest.mark.parametrize(
    ("change", "output"),
    [
        ({"cache": CacheState()}, "state of caches was not recorded"),
        ({"operation": "WRITE"}, "buffered writes"),
        ({"spec_hash": "other"}, "2 different specifications"),
    ],
)
def test_summary_doubts_what_is_doubtful(change, output):
    rows = [msgspec.structs.replace(row("READ", c, MIB, 50.0 * c), spec_hash="one") for c in (1, 4)]
    cold = [msgspec.structs.replace(r, cache=CacheState("cold", "x"), direct=False) for r in rows]
    assert not any(output in doubt for doubt in summarise(Results(rows=tuple(cold))).warnings)
    changed = (
        [msgspec.structs.replace(cold[0], **change), *cold[1:]]
        if "spec_hash" in change
        else [msgspec.structs.replace(r, **change) for r in cold]
    )
    assert any(output in doubt for doubt in summarise(Results(rows=tuple(changed))).warnings)


def test_page_fetches_nothing(made):
    seen = Addresses()
    seen.feed(made)
    assert seen.found == []
    assert "default-src 'none'" in made


def test_page_tells_what_is_invalid_and_every_point(made):
    assert "INVALID, and left out: 1 rows: killed host" in made
    assert "256 KiB" in made
    assert "metadata, retrograde" in made


def test_page_hostile_label_stays_text(results):
    evil = "</script><script>alert(1)</script>"
    rows = tuple(msgspec.structs.replace(r, label=evil, source=evil, operation=evil) for r in results.rows)
    text = sweep_page(summarise(Results(rows=rows)), rows)
    assert "<script>alert" not in text


def test_charts_are_there_for_what_the_rows_hold(results):
    result = summarise(results)
    assert set(sweep_charts(result.groups, results.rows)) == {
        "surface-0", "surface-1", "latencies", "series", "losses", "limit-bytes_per_s", "limit-ios_per_s",
    }  # fmt: skip
    plain = [r for r in results.rows if not r.series]
    assert set(sweep_charts(result.groups, plain)) == {"surface-0", "surface-1"}


def test_pictures_are_whole_files_of_their_kind(results, tmp_path):
    specs = sweep_charts(summarise(results).groups, results.rows)
    svg = export_images(specs, tmp_path, "svg")
    assert {f.stem for f in svg} == set(specs)
    assert all(f.read_text().startswith("<svg") and "@" not in f.read_text() for f in svg)
    (png,) = export_images({"losses": specs["losses"]}, tmp_path, "png")
    assert png.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.needs_browser
def test_page_opened_draws_every_chart(results, made, tmp_path):
    assert BROWSER, "no Chromium here: make setup-peers installs it"
    file = tmp_path / "report.html"
    file.write_text(made)
    dom = opened(file, tmp_path)
    assert 'data-charts="drawn"' in dom
    for name in sweep_charts(summarise(results).groups, results.rows):
        place = dom[dom.index(f'id="chart-{name}"') :]
        assert "<svg" in place[: place.index("</figure>")], name


def test_report_of_a_folder_of_old_results(run_cli, results, tmp_path):
    sound = [r for r in results.rows if not r.invalid]
    (tmp_path / "sweep.csv").write_text(render(sound))
    done = run_cli("report", str(tmp_path), "--pictures", str(tmp_path / "pictures"), "--picture-format", "svg")
    assert done.code == 0
    assert done.out.splitlines()[0] == str(tmp_path / "report.html")
    assert {p.name for p in (tmp_path / "pictures").iterdir()} == {"surface-0.svg", "surface-1.svg"}
    again = run_cli("report", str(tmp_path), "--json")  # the page that was written there is not read as a result
    assert (again.code, json.loads(again.out)["rows"]) == (0, len(sound))


def test_report_json_writes_no_page(run_cli, results, tmp_path):
    write_results(tmp_path / "run", results.rows, spec={})
    done = run_cli("report", str(tmp_path / "run"), "--json")
    assert json.loads(done.out)["verdict"]["cells"]
    assert not (tmp_path / "run" / "report.html").exists()


def test_report_of_a_comparison_makes_its_page_again(run_cli, facts, tmp_path):
    from penstock.report.comparison import write

    write(facts, tmp_path / "comparison.json")
    done = run_cli("report", str(tmp_path))
    assert (done.code, done.out.strip()) == (0, str(tmp_path / "report.html"))
    assert facts.headline[0] in (tmp_path / "report.html").read_text()


def test_report_gives_the_rows_as_elbencho_s_csv(run_cli, results, tmp_path):
    write_results(tmp_path / "run", results.rows, spec={})
    done = run_cli("report", str(tmp_path / "run"), "--json", "--csv", str(tmp_path / "sweep.csv"))
    assert done.code == 0
    assert (tmp_path / "sweep.csv").read_text() == render(results.rows)


@pytest.mark.parametrize(("version", "field"), [(1, "hit"), (2, "binding_limit")])
def test_report_of_a_disk_trace_draws_it_against_its_limits(version, field, run_cli, tmp_path):
    sample = {"seconds": 0.25, "write_bytes_per_s": 0.0, "write_ios_per_s": 0.0, "utilisation": 0.9, "queue": 7.5}
    trace = {
        "device": "loop3",
        "limits": {"ios_per_s": 500.0, "bytes_per_s": 5e8, "source": "AWS st1, 2018"},
        "samples": [{**sample, "at_s": i / 4, "read_bytes_per_s": 5e7, "read_ios_per_s": 495.0} for i in range(1, 20)],
        field: "IOPS",
        "seconds": 5.0,
        "read_bytes": 250_000_000,
        "write_bytes": 0,
        "ios": 2475,
    }
    (tmp_path / "trace.json").write_text(json.dumps({"schema_version": version, "traces": [trace]}))
    done = run_cli("report", str(tmp_path / "trace.json"), "--pictures", str(tmp_path), "--picture-format", "svg")
    assert done.code == 0
    assert "loop3 is limited by operations per second" in done.err
    assert "stated 500 I/O operations/s" in (tmp_path / "limit-ios_per_s.svg").read_text()
    (tmp_path / "trace.json").write_text('{"schema_version": 1, "traces": [{}]}')
    assert run_cli("report", str(tmp_path / "trace.json"), "--json").code == 1


def test_report_of_training_runs_shows_where_their_time_went(run_cli, tmp_path):
    from penstock.bench import results

    def record(name, **seconds):
        return results.RunRecord(
            id=name,
            kind="train",
            created="2026-01-01T00:00:00Z",
            spec={},
            spec_hash="0" * 16,
            provenance=msgspec.structs.replace(results.provenance(), build_profile="release"),
            seed=0,
            train_s=10.0,
            bytes=1_000_000,
            loader={"seconds": {"wall_s": 10.0, **seconds}, "limiting": "inflate_s"},
        )

    results.save(record("one", compute_s=4.0, inflate_s=6.0), tmp_path)
    results.save(record("two", compute_s=9.0, transfer_s=1.0), tmp_path)
    done = run_cli("report", str(tmp_path), "--pictures", str(tmp_path), "--picture-format", "svg")
    assert done.code == 0
    assert "one is limited by inflate; two is limited by inflate" in done.err
    assert {"inflate", "transfer", "compute"} <= set(re.findall(r">(\w+)<", (tmp_path / "losses.svg").read_text()))
    for name in ("three", "four"):
        results.save(record(name, compute_s=1.0), tmp_path)
    assert "4 runs limited by inflate" in run_cli("report", str(tmp_path)).err


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_report_without_rows_is_reported(run_cli, tmp_path, what):
    (tmp_path / "empty").mkdir()
    done = run_cli("report", str(tmp_path / what))
    assert (done.code, done.out) == (3, "")

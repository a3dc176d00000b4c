# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock study` on a small study of its own: what runs, what is kept, what is refused, and the reports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, NotFound
from penstock.study.markdown import markdown, score
from penstock.study.page import study_page
from penstock.study.result import Claim, PartRecord, PartResult, StudyResult, Value, read_result, write_result
from penstock.study.spec import ExpectedFigure, find_study, list_studies, studies_folder
from penstock.study.table import all_claims, format_value, rows

PENSTOCK = Path(sys.executable).with_name("penstock")
SPEC = """
schema_version = 1
[study]
letter = "Z"
title = "A study"
question = "Is it?"
publication = "Nobody 2020"
[[part]]
name = "first-part"
what = "Compute"
[[part]]
name = "second"
what = "Wait"
sizes = ["small"]
[[part]]
name = "lacking"
what = "Never"
programs = ["no-such-program-of-anyone"]
[size.tiny]
value = 2.0
[size.small]
value = 3.0
"""
EXPECTED = """
schema_version = 1
contradiction = ["It says 1 and 2."]
not_comparable = ["**Apples** are not pears."]
[[figure]]
id = "rate"
group = "Rates"
label = "rate of the pool"
unit = "GB/s"
published = 2.0
inverted_within = 0.05
predicted_within = 0.05
[[figure]]
id = "far"
group = "Rates"
label = "rate of 100 nodes"
unit = "GB/s"
published = 200.0
text = "> 200"
bound = "above"
one_machine = false
"""
FIRST = """
from penstock.study.result import Chart, Line, PartResult, Table, Text, Value
from .shared import TWO
def run(context):
    (context.scratch / "data").write_bytes(b"x")
    return PartResult(
        inverted={"rate": Value(TWO), "far": Value(210.0)},
        predicted={"rate": Value(context.size["value"], "the <disk>")},
        measured={"rate": Value(0.5, scale=0.25)},
        blocks=(Text(title="A part", text="**bold** & `code`", items=("one",)),
                Table("Numbers", ("a", "b"), (("x", "1"),)),
                Chart("line", "A line", "nodes", "GB/s", (Line("pool", ((1.0, 2.0), (2.0, 4.0))),), "It rises.")),
    )
"""
SECOND = """
import time
from penstock.study.result import Claim, PartResult
def run(context):
    context.progress("waiting in " + str(context.scratch))
    time.sleep(float(__import__("os").environ.get("WAIT_S", "0")))
    holds = "first-part" in context.done
    return PartResult(claims=(Claim("the first part has run", str(holds), holds, must=True),))
"""


@pytest.fixture
def studies(tmp_path):
    folder = tmp_path / "studies/a-study"
    folder.mkdir(parents=True)
    for name, text in (
        ("spec.toml", SPEC), ("expected.toml", EXPECTED), ("first_part.py", FIRST), ("second.py", SECOND), ("shared.py", "TWO = 2.1\n"),
    ):  # fmt: skip
        (folder / name).write_text(text)
    return folder.parent


def study(run_cli, studies, *words, **options):
    return run_cli("study", words[0], *words[1:], *(() if words[0] == "report" else ("--studies", studies)), **options)


def test_relative_scratch_is_an_absolute_path_in_the_parts(run_cli, studies, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    done = study(
        run_cli,
        studies,
        "run",
        "a-study",
        "--only",
        "first-part,second",
        "-o",
        tmp_path / "out",
        "--scratch",
        "scratch",
    )
    assert done.code == 0, done.err
    assert f"waiting in {tmp_path}/scratch/" in done.err


def test_run_writes_results_and_reports_and_leaves_no_scratch(run_cli, studies, tmp_path):
    (tmp_path / "scratch").mkdir()
    done = study(
        run_cli, studies, "run", "a-study", "-o", tmp_path / "out", "--scratch", tmp_path / "scratch", "--json"
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [part["name"] for part in found["parts"]] == ["first-part", "second", "lacking"]
    assert found["parts"][2]["skipped"] == "the program no-such-program-of-anyone"
    assert found["complete"] is True
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.md", "results.json"]
    assert list((tmp_path / "scratch").iterdir()) == []
    text = (tmp_path / "out/report.md").read_text()
    assert "| rate of the pool | 2 GB/s | 2.1 GB/s (+5.0%) | 3 GB/s (+50.0%) | 0.5 GB/s at F = 0.25 |" in text
    assert "| rate of 100 nodes | > 200 | 210 GB/s | – | modelled, not measured |" in text
    assert "**Contradiction in the publication**: It says 1 and 2." in text
    assert "**Not measured**: lacking: it needs the program no-such-program-of-anyone." in text
    assert "median error 50.0%, largest 50.0%, over 1 published figures" in text
    page = (tmp_path / "out/report.html").read_text()
    assert page.index("<h1>") < page.index("<table>")
    assert "the &lt;disk&gt;" in page
    assert not re.search(r"(src|href)=.http", page)


def test_run_of_one_part_keeps_the_others_and_a_full_run_does_not(run_cli, studies, tmp_path):
    assert study(run_cli, studies, "run", "a-study", "-o", tmp_path / "out").code == 0
    first = read_result(tmp_path / "out")
    again = study(run_cli, studies, "run", "a-study", "--only", "second", "-o", tmp_path / "out")
    assert again.code == 0, again.err
    second = read_result(tmp_path / "out")
    assert second.parts[0] == first.parts[0]
    other = study(run_cli, studies, "run", "a-study", "--only", "second", "-o", tmp_path / "new")
    assert other.code == 1, "a claim that must hold does not hold without the first part"
    assert "does not hold: the first part has run" in other.out
    (studies / "a-study/spec.toml").write_text(SPEC.replace("3.0", "4.0"))
    assert study(run_cli, studies, "run", "a-study", "--only", "second", "-o", tmp_path / "out").code == 1


def test_report_is_written_from_results_alone(run_cli, studies, tmp_path):
    assert study(run_cli, studies, "run", "a-study", "--size", "tiny", "-o", tmp_path / "out").code == 0
    before = (tmp_path / "out/report.md").read_text()
    (studies / "a-study/spec.toml").unlink()
    done = study(run_cli, studies, "report", tmp_path / "out", "-o", tmp_path / "elsewhere")
    assert done.code == 0, done.err
    assert (tmp_path / "elsewhere/report.md").read_text() == before
    assert str(tmp_path / "elsewhere/report.html") in done.out


def test_dry_run_prints_parts_and_runs_nothing(run_cli, studies, tmp_path):
    done = study(run_cli, studies, "run", "a-study", "--size", "tiny", "--dry-run", "-o", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    parts = {part["name"]: part for part in json.loads(done.out)["parts"]}
    assert list(parts) == ["first-part", "lacking"]
    assert parts["lacking"]["lacks"] == ["the program no-such-program-of-anyone"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "a-studdy"), "did you mean `a-study`?"),
        (("run", "a-study", "--size", "smal"), "did you mean `small`?"),
        (("run", "a-study", "--only", "secnd"), "did you mean `second`?"),
        (("run", "a-study", "--size", "tiny", "--only", "second"), "does not exist at size tiny"),
        (("run", "a-study", "--only", "lacking"), "no-such-program-of-anyone"),
        (("run", "a-study", "--launcher", "slurm"), "no part of study a-study uses the nodes of --launcher"),
        (("run", "a-study", "--nodes", "2", "--dry-run"), "no part of study a-study uses the nodes of --launcher"),
    ],
)
def test_wrong_names_are_one_error_with_the_nearest(run_cli, studies, tmp_path, words, message):
    done = study(run_cli, studies, *words, "-o", tmp_path / "out")
    assert done.code in (2, 3), done.err
    assert message in done.err
    assert done.err.count("error[") == 1
    assert not (tmp_path / "out").exists()


def test_interrupted_run_keeps_ended_parts_and_removes_its_scratch(studies, tmp_path):
    (tmp_path / "scratch").mkdir()
    child = subprocess.Popen(
        [PENSTOCK, "study", "run", "a-study", "--studies", studies, "-o", tmp_path / "out", "--scratch", tmp_path / "scratch"],
        env={**os.environ, "WAIT_S": "60"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and not (tmp_path / "out/results.json").exists():
        time.sleep(0.05)
    while time.monotonic() < until and not list((tmp_path / "scratch").iterdir()):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    found = read_result(tmp_path / "out")
    assert ([part.name for part in found.parts], found.complete) == (["first-part"], False)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert "interrupted" in markdown(found)


def test_part_that_returns_an_unknown_figure_is_refused(run_cli, studies, tmp_path):
    (studies / "a-study/first_part.py").write_text(FIRST.replace('"far": Value', '"fat": Value'))
    done = study(run_cli, studies, "run", "a-study", "-o", tmp_path / "out")
    assert done.code == 2
    assert "figure `fat`, which expected.toml does not contain" in done.err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("spec.toml", 'letter = "Z"', 'leter = "Z"', r"\[study\] has no key `leter` \(did you mean `letter`\?\)"),
        ("spec.toml", 'sizes = ["small"]', 'sizes = ["huge"]', "mentions size `huge`"),
        ("spec.toml", "schema_version = 1", "schema_version = 2", "schema_version is not 1"),
        ("spec.toml", 'name = "second"', 'name = "first-part"', "two parts have the same name"),
        ("expected.toml", 'id = "far"', 'id = "rate"', "figure `rate` occurs twice"),
        ("expected.toml", "published = 2.0", 'published = "2"', "Expected `float"),
        ("expected.toml", "published = 2.0", "published = ", "Invalid value"),
    ],
)
def test_bad_files_are_refused_by_name(studies, file, old, new, message):
    path = studies / "a-study" / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        find_study("a-study", studies)
    assert file in str(caught.value)


def test_all_studies_of_the_repository_are_valid_and_have_the_modules_of_their_parts():
    found = {study.name: study for study in list_studies(studies_folder())}
    assert {
        "cosmoflow-staged",
        "ondemand-pool",
        "imagenet-storage",
        "seismic-object-store",
        "collectives-containers",
    } <= set(found)
    for each in found.values():
        assert {"tiny", "small", "full"} <= set(each.sizes), each.name
        assert (each.folder / "README.md").is_file(), each.name
        for part in each.parts:
            assert (each.folder / f"{part.name.replace('-', '_')}.py").is_file(), (each.name, part.name)
        assert any(figure.published is not None for figure in each.expected.figure), each.name


def test_studies_folder_that_is_missing_is_refused(tmp_path):
    with pytest.raises(NotFound, match="is not a folder"):
        studies_folder(tmp_path / "none")


def test_results_of_a_newer_version_and_damaged_ones_are_refused(tmp_path):
    with pytest.raises(NotFound, match="contains no results of a study"):
        read_result(tmp_path)
    (tmp_path / "results.json").write_text('{"schema_version": 99}')
    with pytest.raises(ConfigError, match="schema_version 99"):
        read_result(tmp_path)
    (tmp_path / "results.json").write_text("[1]")
    with pytest.raises(ConfigError, match="is not a result of a study"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value(2.5, scale=1.0), "2.5 GB/s (+25.0%)"),
        (Value(0.5, scale=0.25), "0.5 GB/s at F = 0.25"),
        (Value(0.5, is_comparable=False), "0.5 GB/s"),
    ],
)
def test_measured_value_has_an_error_only_if_it_is_of_the_published_size(value, text):
    figure = ExpectedFigure(id="rate", group="Rates", label="rate", unit="GB/s", published=2.0)
    part = PartRecord(name="one", size="full", created="2026", result=PartResult(measured={"rate": value}))
    result = StudyResult(
        study="s", letter="Z", title="t", question="q", publication="p", size="full", spec_hash="0", figures=(figure,),
        parts=(part,),
    )  # fmt: skip
    assert f"| rate | 2 GB/s | – | – | {text} |" in markdown(result)


numbers = st.floats(0.01, 1e6)
figures = st.builds(
    ExpectedFigure,
    id=st.sampled_from("abc"), group=st.just("g"), label=st.text(min_size=1, max_size=9), unit=st.sampled_from(["", "s", "USD"]),
    published=st.none() | numbers, bound=st.sampled_from(["", "above", "below"]), inverted_within=st.none() | st.just(0.05),
)  # fmt: skip
values = st.dictionaries(st.sampled_from("abc"), st.builds(Value, value=numbers, note=st.text(max_size=9)))


@settings(deadline=None)
@given(st.lists(figures, max_size=3, unique_by=lambda each: each.id), values, values, values)
def test_prop_any_result_survives_its_file_and_has_a_report(tmp_path_factory, listed, inverted, predicted, measured):
    part = PartResult(inverted=inverted, predicted=predicted, measured=measured, claims=(Claim("c", "h", None),))
    result = StudyResult(
        study="s", letter="Z", title="t", question="q", publication="p", size="tiny", spec_hash="0", figures=tuple(listed),
        parts=(PartRecord(name="one", size="tiny", created="2026", result=part),),
    )  # fmt: skip
    folder = tmp_path_factory.getbasetemp()
    write_result(result, folder)
    assert read_result(folder) == result
    assert len(rows(result)) == len(listed)
    assert len(all_claims(result)) >= 1
    assert markdown(result).startswith("# Study Z: t")
    assert isinstance(score(rows(result)), str)


def test_page_of_a_result_without_figures_has_the_answer(tmp_path):
    result = StudyResult(
        study="s", letter="Z", title="t", question="<q>", publication="p", size="tiny", spec_hash="0", answer="<yes>"
    )
    page = study_page(msgspec.structs.replace(result, complete=True))
    assert "<h1>&lt;yes&gt;</h1>" in page
    assert len(page.encode()) < 3e6


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1255.9, "USD", "$1,256"), (0.5, "USD", "$0.50"), (15.0, "min", "15.0 min"), (0.1234, "GB/s", "0.123 GB/s"), (247080, "s", "247,080 s"), (0, "%", "0 %")],
)  # fmt: skip
def test_values_have_three_or_four_digits_and_their_unit(value, unit, text):
    assert format_value(value, unit) == text

# SPDX-License-Identifier: Apache-2.0
import json
import math
import subprocess
import sys

import msgspec
import pytest

from penstock.bench import machine_card, results
from penstock.bench.rows import End, Row, read_results, write_results
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError


def card():
    return machine_card.MachineCard(cpu="a cpu", cores=2, memory_bytes=8 << 30, kernel="Linux 6", python="3.11")


def record(profile="release", **fields):
    spec = {"data": "file:///d", "seed": 1}
    made = {
        "id": results.new_id("train", 1.7e9),
        "kind": "train",
        "created": "2026-01-01T00:00:00Z",
        "spec": spec,
        "spec_hash": results.spec_hash(spec),
        "provenance": results.Provenance(version="0.1.0", build_profile=profile, machine=card()),
        "seed": 1,
    }
    return results.RunRecord(**{**made, **fields})


def test_result_saved_and_loaded_is_the_same(tmp_path):
    losses = (0.1, 1 / 3, 2.0**-40)
    saved = record(losses=losses, mae=0.25, loader={"seconds": {"compute": 1.5}}, stage_s=2.5)
    file = results.save(saved, tmp_path)
    assert file == tmp_path / saved.id / "result.json"
    assert results.load(file) == saved
    assert results.load(file.parent).losses == losses
    assert [p.name for p in file.parent.iterdir()] == ["result.json"]


def test_result_of_debug_build_is_refused_or_marked(tmp_path):
    with pytest.raises(ConfigError, match="debug build") as caught:
        results.save(record("debug"), tmp_path)
    assert "--allow-debug" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())
    file = results.save(record("debug"), tmp_path, allow_debug=True)
    assert results.load(file).invalid == ("debug build",)


def test_result_of_release_build_is_valid(tmp_path):
    assert results.load(results.save(record(), tmp_path)).invalid == ()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_result_with_a_figure_that_is_none_is_refused(tmp_path, value):
    with pytest.raises(Corrupt, match=r"losses\[1\]"):
        results.save(record(losses=(0.5, value)), tmp_path)
    with pytest.raises(Corrupt, match=r"loader\.rate"):
        results.save(record(loader={"rate": value}), tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_result_of_newer_schema_is_refused_and_unknown_fields_are_not(tmp_path):
    file = results.save(record(), tmp_path)
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "field_of_the_future": 1}))
    assert results.load(file).kind == "train"
    file.write_text(json.dumps({**document, "schema_version": results.SCHEMA_VERSION + 1}))
    with pytest.raises(Corrupt, match="schema version"):
        results.load(file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": "x"}', '{"schema_version": 1}', "\xff"])
def test_result_that_is_none_is_corrupt(tmp_path, text):
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(Corrupt, match=r"result\.json"):
        results.load(file)


def test_result_missing_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        results.load(tmp_path)
    with pytest.raises(NotFound):
        results.load_all(tmp_path / "none")


def test_results_of_a_folder_come_by_time_and_skip_unfinished(tmp_path):
    late, early = record(id=results.new_id("train", 2e9)), record(id=results.new_id("train", 1e9))
    for one in (late, early):
        results.save(one, tmp_path)
    (tmp_path / "20260101T000000Z-train-ffffff").mkdir()
    assert [r.id for r in results.load_all(tmp_path)] == [early.id, late.id]


def test_result_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(PenstockError, match="cannot be written"):
        results.save(record(), blocked)


def test_spec_hash_ignores_order_and_tells_values_apart():
    assert results.spec_hash({"a": 1, "b": [1, 2]}) == results.spec_hash({"b": [1, 2], "a": 1})
    assert results.spec_hash({"a": 1}) != results.spec_hash({"a": 2})
    assert len(results.spec_hash({})) == 16


def test_provenance_tells_build_and_machine():
    result = results.provenance()
    assert result.build_profile in {"debug", "release"}
    assert result.machine.cores >= 1
    assert result.machine.memory_bytes > 1 << 28
    assert (result.commit is None) == (result.dirty is None)
    assert msgspec.json.decode(msgspec.json.encode(result), type=results.Provenance) == result


def test_reading_results_needs_neither_torch_nor_numpy():
    code = "import sys, penstock.bench.results; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_rows_of_before_know_their_processors_from_the_machine(tmp_path):
    """Rows written before the field `cores` existed take the processor count from the machine."""
    row = Row(operation="READ", last=End(time_s=4.0), cpu_s=4.0)
    write_results(tmp_path, [row], spec={}, provenance=record().provenance)
    (back,) = read_results(tmp_path).rows
    assert (row.own_cpu, back.cores, back.own_cpu) == (None, 2, 0.5)


def test_rows_of_several_hosts_do_not_take_them_for_as_many_machines(tmp_path):
    row = Row(operation="READ", hosts=2, last=End(time_s=4.0), cpu_s=8.0)
    write_results(tmp_path, [row], spec={}, provenance=record().provenance)
    (back,) = read_results(tmp_path).rows
    assert (back.cores, back.own_cpu) == (None, None)

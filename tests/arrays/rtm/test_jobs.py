# SPDX-License-Identifier: Apache-2.0
"""Tests migration jobs: all backends produce the same image, shots are computed once, and killed workers are replaced.

Also tests the batch scripts.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

import penstock.arrays
from penstock.arrays.lease import Lease
from penstock.arrays.rtm import memory
from penstock.arrays.rtm.batch_scripts import ScriptRequest, batch_script
from penstock.arrays.rtm.dask_workers import run_with_dask
from penstock.arrays.rtm.job import Job
from penstock.arrays.rtm.local_workers import LocalWorkers
from penstock.arrays.rtm.prepare import prepare, read_model
from penstock.arrays.rtm.stack import stack_images
from penstock.arrays.rtm.status import status
from penstock.arrays.rtm.worker import run_shots
from penstock.emulator import Emulator
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, NotFound
from penstock.rtm.imaging import reflector_peaks
from penstock.rtm.velocity_model import layered, reflector_depths

SPACING_KM = 0.01
MODEL = layered((101, 101), SPACING_KM, (0.35, 0.65))


def new_job(url, **options):
    return prepare(url, MODEL, spacing_km=SPACING_KM, shots=3, frequency_hz=20, **options)


def image_of(url) -> np.ndarray:
    return penstock.arrays.open(stack_images(url).image_url)[...]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished job and its image."""
    url = tmp_path_factory.mktemp("job") / "j"
    new_job(url)
    report = run_shots(url)
    assert report.is_complete
    return url, image_of(url)


def test_image_has_the_true_reflectors(finished):
    url, image = finished
    want = reflector_depths(MODEL)
    assert len(want) == 2
    # The first reflector is within a wavelength of the sources, so source artefacts are about as strong as the
    # reflector.
    found = reflector_peaks(image, 2)
    assert all(min(abs(depth - peak) for peak in found) <= 2 for depth in want), (want, found)
    report = stack_images(url)
    assert report.was_complete
    assert np.array_equal(penstock.arrays.open(report.segy_url, vertical="depth")[...], image)
    assert (url / "stack/image.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("backend", ["segy", "hdf5", "zarr", "s3"])
def test_image_is_the_same_on_each_backend_bit_for_bit(backend, finished, tmp_path, monkeypatch):
    _, want = finished
    if backend != "s3":
        new_job(tmp_path / "j", backend=backend)
        run_shots(tmp_path / "j")
        assert image_of(tmp_path / "j").tobytes() == want.tobytes()
        return
    (tmp_path / "store").mkdir()
    with Emulator(tmp_path / "store") as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        url = f"{emulator.url.rstrip('/')}/jobs/j"
        new_job(url)
        run_shots(url)
        assert image_of(url).tobytes() == want.tobytes()
        assert status(url).is_stacked


def test_killed_worker_costs_the_shot_in_hand(finished, tmp_path):
    _, want = finished
    url = tmp_path / "j"
    new_job(url)
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "array", "rtm", "shots", str(url), "--first", "0", "--events"],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    until = time.monotonic() + 30
    while time.monotonic() < until and not list((url / "claims").glob("0*")):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    job = Job.load(url)
    before = {kind: job.done(kind) for kind in ("model", "migrate")}
    marks = {path: path.stat().st_mtime_ns for path in (url / "done").rglob("*") if path.is_file()}
    claimed = job.claimed()
    report = run_shots(url)
    assert report.is_complete
    for kind, shots in report.computed.items():
        assert set(shots) == set(range(3)) - before[kind]
    assert {path: path.stat().st_mtime_ns for path in marks} == marks
    assert set(report.taken_over) == claimed
    assert image_of(url).tobytes() == want.tobytes()


def test_two_workers_compute_each_shot_once(finished, tmp_path):
    _, want = finished
    new_job(tmp_path / "j")
    seen: Counter[tuple[str, int]] = Counter()
    report = LocalWorkers(tmp_path / "j", 2, on_shot=lambda facts: seen.update([(facts["kind"], facts["shot"])])).run()
    assert report.is_complete
    assert set(seen.values()) == {1}
    assert len(seen) == 6
    assert image_of(tmp_path / "j").tobytes() == want.tobytes()
    found = status(tmp_path / "j")
    assert found.stages["migrate"].seconds["compute_s"] > 0
    assert found.stages["migrate"].cpu_s > 0
    assert not found.claims


@pytest.mark.system
def test_dask_computes_the_same_image(finished, tmp_path):
    _, want = finished
    new_job(tmp_path / "j")
    assert run_with_dask(tmp_path / "j", workers=2).is_complete
    assert image_of(tmp_path / "j").tobytes() == want.tobytes()


def test_snapshots_on_disk_give_the_same_image(finished, tmp_path):
    _, want = finished
    new_job(tmp_path / "j")
    (tmp_path / "disk").mkdir()
    run_shots(tmp_path / "j", snapshots_dir=tmp_path / "disk")
    assert not list((tmp_path / "disk").iterdir())
    assert image_of(tmp_path / "j").tobytes() == want.tobytes()


def test_unfinished_job_is_not_stacked_and_another_job_is_refused(tmp_path):
    new_job(tmp_path / "j")
    with pytest.raises(NotFound, match="3 of 3 shots have not been migrated"):
        stack_images(tmp_path / "j")
    assert new_job(tmp_path / "j").survey.shots == 3
    with pytest.raises(Mismatch):
        prepare(tmp_path / "j", MODEL, spacing_km=SPACING_KM, shots=4, frequency_hz=20)
    with pytest.raises(NotFound):
        run_shots(tmp_path / "none")
    with pytest.raises(ConfigError, match="backend"):
        new_job(tmp_path / "k", backend="parquet")


def test_model_is_read_in_its_unit(tmp_path):
    made = penstock.arrays.create_array(tmp_path / "v", MODEL.shape, "f4", dims=("x", "depth"), attrs={"units": "m/s"})
    made[...] = MODEL * 1000
    values, spacing_km = read_model(tmp_path / "v")
    assert np.allclose(values, MODEL)
    assert spacing_km is None


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("slurm", ["#SBATCH --array=0-3%2", "--requeue", "--signal=B:USR1@120", "--cpus-per-task=4", "penstock array rtm shots s3://b/j"]),
        ("pbs", ["#PBS -J 0-3%2", "-l select=1:ncpus=4", "-r y"]),
        ("dask-slurm", ["SLURMCluster(", "'--lifetime'", "run_with_dask("]),
        ("dask-pbs", ["PBSCluster(", "walltime='01:00:00'"]),
    ],
)  # fmt: skip
def test_script_has_what_the_batch_system_needs(scheduler, words, tmp_path):
    request = ScriptRequest(
        "s3://b/j",
        tasks=4,
        cores=4,
        limit_s=3600,
        concurrent=2,
        variables={"DEVITO_LANGUAGE": "openmp", "AWS_SECRET_ACCESS_KEY": "hidden"},
    )
    text = batch_script(scheduler, request)
    for word in words:
        assert word in text
    assert "DEVITO_LANGUAGE" in text
    assert "hidden" not in text
    (tmp_path / "script").write_text(text)
    check = [sys.executable, "-m", "py_compile"] if scheduler.startswith("dask") else ["bash", "-n"]
    assert subprocess.run([*check, str(tmp_path / "script")], check=False).returncode == 0


@pytest.fixture(scope="module")
def unstarted(tmp_path_factory):
    """A job without finished shots."""
    url = tmp_path_factory.mktemp("job") / "unstarted"
    return new_job(url)


@pytest.mark.parametrize(
    ("free_bytes", "words"),
    [
        # A worker needs about 0.22 GB, of which 12 MB are snapshots.
        (1_000_000_000, ["pass --workers 4"]),
        (100_000_000, ["smaller --aperture", "pass --no-memory-check"]),
    ],
)
def test_memory_too_small_is_refused_before_workers_start(free_bytes, words, unstarted, monkeypatch):
    monkeypatch.setattr(memory, "memory_available", lambda: free_bytes)
    with pytest.raises(
        BudgetExceeded, match=r"memory: 8 workers need .* each, including snapshots of .*\), but only"
    ) as caught:
        LocalWorkers(unstarted.location.url, 8)
    assert caught.value.budget == free_bytes
    assert caught.value.need == 8 * memory.worker_bytes(unstarted, unstarted.kinds)
    for word in words:
        assert word in (caught.value.hint or "")
    with pytest.raises(BudgetExceeded, match="8 workers"):
        run_with_dask(unstarted.location.url, workers=8)
    assert not unstarted.claimed()
    LocalWorkers(unstarted.location.url, 8, checks_memory=False)


def test_memory_too_small_for_one_shot_is_refused_before_its_claim(unstarted, monkeypatch):
    monkeypatch.setattr(memory, "memory_available", lambda: 1)
    with pytest.raises(BudgetExceeded, match="memory: 1 worker needs"):
        run_shots(unstarted.location.url)
    assert not unstarted.claimed()


def test_memory_refusal_names_the_settings_that_fit(tmp_path, monkeypatch):
    job = prepare(
        tmp_path / "j",
        layered((301, 301), SPACING_KM),
        spacing_km=SPACING_KM,
        shots=1,
        frequency_hz=10,
        snapshot_factor=1,
    )
    need = memory.worker_bytes(job, job.kinds)
    factor = job.survey.max_snapshot_factor
    small, disk = (
        memory.worker_bytes(job, job.kinds, snapshot_factor=factor),
        memory.worker_bytes(job, job.kinds, on_disk=True),
    )
    assert disk < small < need / 2
    monkeypatch.setattr(memory, "memory_available", lambda: need - 1)
    with pytest.raises(BudgetExceeded) as caught:
        memory.check_memory(job, job.kinds)
    hint = caught.value.hint or ""
    assert f"--snapshot-factor {factor}" in hint
    assert "--snapshots-dir DIR" in hint
    assert "--workers" not in hint
    # Each of the two settings in the hint is sufficient, and `prepare` accepts the factor.
    memory.check_memory(job, job.kinds, on_disk=True)
    again = prepare(
        tmp_path / "k",
        layered((301, 301), SPACING_KM),
        spacing_km=SPACING_KM,
        shots=1,
        frequency_hz=10,
        snapshot_factor=factor,
    )
    memory.check_memory(again, again.kinds)
    monkeypatch.setattr(memory, "memory_available", lambda: disk)
    with pytest.raises(BudgetExceeded) as caught:
        memory.check_memory(job, job.kinds)
    assert "--snapshot-factor" not in (caught.value.hint or "")


def test_memory_of_control_groups_limits_the_machine(tmp_path, monkeypatch):
    for name, text in {
        "meminfo": "MemTotal: 9 kB\nMemAvailable: 5 kB\n",
        "own": "5:cpu:/\n4:cpuset,memory:/old\n0::/job/step\n",
        "job/memory.max": "4000\n",
        "job/memory.current": "3700\n",
        "job/memory.stat": "anon 450\nfile 250\nshmem 50\n",
        "job/step/memory.max": "max\n",
        "memory/old/memory.limit_in_bytes": "4000\n",
        "memory/old/memory.usage_in_bytes": "900\n",
        "memory/old/memory.stat": "cache 1\ntotal_cache 600\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.memory_available() == 500
    (tmp_path / "job/memory.max").write_text("max\n")
    assert memory.memory_available() == 3700
    (tmp_path / "own").write_text("0::/elsewhere\n")
    assert memory.memory_available() == 5 * 1024


@pytest.mark.parametrize(("flags", "code"), [(["--no-wait"], 0), (["--no-wait", "--stage", "migrate"], 1)])
def test_worker_that_leaves_the_rest_to_others_has_not_failed(flags, code, tmp_path, run_cli):
    job = new_job(tmp_path / "j")
    run_shots(tmp_path / "j", stage="model")
    if code:
        job.forget([1], ("model",))
    with Lease(job.location, "claims/000000"):
        ran = run_cli("array", "rtm", "shots", tmp_path / "j", *flags, "--json")
    assert ran.code == code, ran.err
    report = json.loads(ran.out)
    assert not report["is_complete"]
    assert 0 not in report["computed"].get("migrate", [])


def test_damaged_image_is_computed_again_by_the_hint(tmp_path, run_cli):
    job = new_job(tmp_path / "j")
    run_shots(tmp_path / "j")
    want = image_of(tmp_path / "j")
    (tmp_path / "j/stack/done.json").unlink()
    values = penstock.arrays.open(tmp_path / "j/images", array="image")[...]
    place, document = job.output("image")
    core = penstock._native.ZarrWriter(place.url, json.dumps(document), place.variables, timeout_s=60.0)
    core.write((1, 0, 0), np.ascontiguousarray(values[1] + 1, dtype="f4").reshape(-1).view(np.uint8))
    with pytest.raises(Corrupt, match="shot 1: the stored image") as caught:
        stack_images(tmp_path / "j")
    command = re.search(r"penstock (array rtm shots \S+ --redo 1)\b", caught.value.hint or "")
    assert command is not None, caught.value.hint
    ran = run_cli(*command[1].split(), "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["computed"] == {"model": [1], "migrate": [1]}
    assert image_of(tmp_path / "j").tobytes() == want.tobytes()

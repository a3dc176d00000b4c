# SPDX-License-Identifier: Apache-2.0
"""Tests training over real files and a real endpoint: the loader, the CLI and the example."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.datasets import cosmoflow
from penstock.datasets.images import ImageSpec, generate
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt
from penstock.train import TrainSpec, run

pytestmark = pytest.mark.needs_torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    home = tmp_path_factory.mktemp("bucket")
    cosmoflow.generate(home / "train", samples=13, voxels=32, seed=3)
    cosmoflow.generate(home / "valid", samples=5, voxels=32, seed=3, first_universe=13)
    return home


def spec(base, **fields):
    made = {
        "workload": "cosmoflow",
        "data": f"{base}/train/",
        "validation": f"{base}/valid/",
        "global_batch": 4,
        "epochs": 2,
        "settings": {"voxels": 32, "filters": 2},
        "threads": 1,
    }
    return TrainSpec(**{**made, **fields})


def test_training_learns_the_same_from_every_path(data, monkeypatch):
    local = run(spec(data.as_uri()))
    assert local["steps"] == 6  # the tail of 13 is dropped
    assert local["metrics"][-1]["validation_samples"] == 5
    stored = sum(p.stat().st_size for p in (data / "train").iterdir())
    assert 24 / 26 * 0.9 * 2 * stored <= local["bytes"] <= 2 * stored
    assert local["loader"]["limiting"]
    with Emulator(data) as served:
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        over_s3 = run(spec(served.url.rstrip("/")))
        assert over_s3["losses"] == local["losses"]
        assert over_s3["metrics"] == local["metrics"]
        assert over_s3["requests"] >= 24
        paced = run(spec(served.url.rstrip("/"), accelerator="h100", validation=None))
        assert paced["samples"] == 24
        assert paced["bytes_delivered"] == 24 * (32**3 * 8 + 16)


def test_training_resumed_over_real_files_goes_on_bit_for_bit(data, tmp_path):
    straight = run(spec(data.as_uri()))
    run(spec(data.as_uri(), steps=4, checkpoint=str(tmp_path)))
    rest = run(spec(data.as_uri(), checkpoint=str(tmp_path), resume=True))
    assert rest["losses"] == straight["losses"]
    assert rest["mae"] == straight["mae"]


def penstock(*argv, env=None):
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, argv)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_cli_train_prints_one_json_result_and_keeps_it(data, tmp_path):
    flags = ["--voxels", 32, "--filters", 2, "--batch-size", 4, "--threads", 1, "--set", "dropout=0.25", "--json"]
    done = penstock(
        "train",
        "cosmoflow",
        "--data",
        data / "train",
        "--validation",
        data / "valid",
        *flags,
        "--output",
        tmp_path,
        "--allow-debug",
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["schema_version"] == 2
    assert result["spec"]["settings"] == {"voxels": 32, "filters": 2, "dropout": 0.25}
    assert len(result["losses"]) == 3
    assert json.loads((tmp_path / result["id"] / "result.json").read_text()) == result
    assert "samples/s" in done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "output"),
    [
        (("--data", "dummy://8", "--voxels", "48"), 2, "multiple of 32"),
        (("--data", "dummy://8", "--accelerator", "tpu"), 2, "tpu"),
        (("--data", "dummy://8", "--set", "no_such=1"), 2, "no_such"),
        (("--data", "dummy://8", "--batch-size", "1", "--global-batch", "2"), 2, "cannot be combined"),
        (("--data", "file:///no/such/folder"), 3, "/no/such/folder"),
    ],
)
def test_cli_train_bad_input_is_one_error_with_its_exit_code(argv, code, output):
    done = penstock("train", "cosmoflow", "--no-save", *argv)
    assert done.returncode == code, done.stderr
    assert output in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error[")


def test_cli_train_help_imports_no_torch():
    code = "import sys\nsys.modules['torch'] = None\nsys.argv = ['penstock', 'train', '--help']\nfrom penstock.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--accelerator" in done.stdout


def test_example_ddp_runs_under_torchrun(data):
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(4):
        done = subprocess.run(
            [*argv, str(ROOT / "examples/ddp_cosmoflow.py"), str(data / "train"), "32"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # torch 2.15 sometimes aborts when a gloo rank exits (see penstock.train.worker.exit_now). A plain script cannot
        # avoid that, so only this error is retried.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-800:]
    assert "epoch 2 begins next" in done.stdout


def test_cli_train_says_what_its_epochs_cost_before_the_first(data):
    with Emulator(data) as served:
        flags = ["--data", f"{served.url}train/", "--voxels", 32, "--accelerator", "h100", "--epochs", 3, "--no-save"]
        done = penstock("train", "cosmoflow", *flags, "--json", env=served.env)
    assert done.returncode == 0, done.stderr
    money = json.loads(done.stdout)["money"]
    assert (money["tier"], money["epochs"], money["nodes"]) == ("s3-standard", 3, 1)
    assert money["without_cache"]["egress_usd"] == pytest.approx(3 * money["with_cache"]["egress_usd"])
    assert done.stderr.index("without the node's cache") < done.stderr.index(" epoch ")


def test_resume_on_other_content_is_noted_and_training_goes_on(data, tmp_path):
    cosmoflow.generate(tmp_path / "other/train", samples=13, voxels=32, seed=4)
    fields = {"checkpoint": str(tmp_path / "kept"), "validation": None}
    run(spec(data.as_uri(), epochs=1, **fields))
    same = run(spec(data.as_uri(), epochs=2, resume=True, **fields))
    assert same["checkpoints"]["changed_settings"] == []
    other = run(spec((tmp_path / "other").as_uri(), epochs=3, resume=True, **fields))
    [note] = other["checkpoints"]["changed_settings"]
    assert note.startswith("data: ")
    assert "bytes in 13 objects -> " in note
    assert other["steps"] == 9


def test_damaged_image_ends_the_training_or_is_replaced(tmp_path):
    generate(tmp_path, ImageSpec(48, 4, width=96, height=80, median_bytes=4000, broken=3, shards=2, format="tar"))
    fields = {
        "workload": "trivial",
        "data": str(tmp_path / "train"),
        "global_batch": 8,
        "settings": {"classes": 4, "image_size": 32},
        "threads": 1,
    }
    with pytest.raises(Corrupt) as caught:
        run(TrainSpec(**fields))
    assert "--on-error substitute" in caught.value.hint
    replaced = run(TrainSpec(**fields, on_error="substitute"))
    assert replaced["samples"] == 48
    assert 0 < replaced["workload"]["substituted"] <= 3
    assert TrainSpec(**fields).hash() == TrainSpec(**fields, on_error=None).hash()
    with pytest.raises(ConfigError, match="on_error"):
        run(TrainSpec(**fields, on_error="skip"))

# SPDX-License-Identifier: Apache-2.0
"""Tests runs of the image workloads over real files, an S3 endpoint and the node cache, with several ranks, and that a
small ResNet learns.
"""

import re

import pytest

from penstock.emulator import Emulator
from penstock.train import TrainSpec, run
from tests.workloads import image_sets

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    home = tmp_path_factory.mktemp("bucket")
    image_sets.write_tfrecord(home / "train", image_sets.samples(26))
    image_sets.write_tar(home / "valid", image_sets.samples(10, first=1000))
    return home


def spec(base, **fields):
    made = {
        "workload": "resnet18",
        "data": f"{base}/train/",
        "validation": f"{base}/valid/",
        "global_batch": 8,
        "epochs": 2,
        "settings": {"image_size": 64, "classes": 4, "warmup_epochs": 0},
        "threads": 1,
    }
    return TrainSpec(**{**made, **fields})


def test_training_learns_the_same_from_file_s3_and_cache(data, monkeypatch, tmp_path):
    local = run(spec(data.as_uri()))
    assert local["steps"] == 6  # the tail of 26 is dropped
    assert len(set(local["losses"])) == 6
    assert local["metrics"][-1]["validation_samples"] == 10
    monkeypatch.setenv("PENSTOCK_SCRATCH", str(tmp_path))
    with Emulator(data) as served:
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        first = run(spec(served.url.rstrip("/")))
        again = run(spec(served.url.rstrip("/")))
        monkeypatch.delenv("PENSTOCK_SCRATCH")
        plain = run(spec(served.url.rstrip("/")))
    for other in (first, again, plain):
        assert other["losses"] == local["losses"]
        assert other["metrics"] == local["metrics"]
    assert again["bytes"] < plain["bytes"] / 10  # the second run read the cache


def test_training_resumed_goes_on_bit_for_bit(data, tmp_path):
    straight = run(spec(data.as_uri()))
    run(spec(data.as_uri(), steps=4, checkpoint=str(tmp_path)))
    rest = run(spec(data.as_uri(), checkpoint=str(tmp_path), resume=True))
    assert rest["losses"] == straight["losses"]
    assert rest["metrics"][-1] == straight["metrics"][-1]


def test_two_ranks_resume_bit_for_bit_and_share_their_statistics(data, tmp_path):
    straight = run(spec(data.as_uri(), ranks=2))
    run(spec(data.as_uri(), ranks=2, steps=4, checkpoint=str(tmp_path)))
    rest = run(spec(data.as_uri(), ranks=2, checkpoint=str(tmp_path), resume=True))
    assert straight["world"] == 2
    assert rest["losses"] == straight["losses"]
    assert rest["metrics"][-1] == straight["metrics"][-1]


def test_validation_folder_that_lacks_classes_has_the_labels_of_the_training_data(tmp_path):
    image_sets.write_folders(tmp_path / "train", image_sets.samples(16))
    pairs = [pair for pair in image_sets.samples(16, first=1000) if pair[1] >= 2]
    image_sets.write_folders(tmp_path / "folders", pairs)
    image_sets.write_tar(tmp_path / "tar", pairs, shards=1)
    common = {"workload": "trivial", "data": str(tmp_path / "train"), "settings": {"classes": 4}, "epochs": 1}
    found = [run(spec("", **common, validation=str(tmp_path / name)))["metrics"][-1] for name in ("folders", "tar")]
    assert found[0]["validation_samples"] == 8
    assert found[0]["validation_loss"] == pytest.approx(found[1]["validation_loss"])


def test_trivial_runs_over_files_and_generated_data(data):
    real = run(spec(data.as_uri(), workload="trivial", settings={"classes": 4}))
    synthetic = run(
        spec(data.as_uri(), workload="trivial", data="dummy://24", validation=None, settings={"classes": 4})
    )
    assert real["bytes_delivered"] == synthetic["bytes_delivered"] == 48 * (227 * 227 * 3 + 16)
    assert real["bytes"] > 0 == synthetic["bytes"]


def test_cli_prints_the_accuracy_beside_chance(data, run_cli):
    flags = ["--data", data / "train", "--validation", data / "valid", "--recipe", "demo", "--set", "classes=4"]
    done = run_cli("train", "resnet18", *map(str, flags), "--batch-size", "8", "--threads", "1", "--no-save")
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("top-1")]
    assert line.endswith("of 10 validation images; chance is 25.0 %")
    assert " · top1 " in done.err


def test_cli_label_out_of_range_is_one_error_with_its_exit_code(data, run_cli):
    flags = ["--data", data / "train", "--recipe", "demo", "--set", "classes=3", "--set", "warmup_epochs=1"]
    done = run_cli("train", "resnet18", *map(str, flags), "--batch-size", "8", "--no-save")
    assert done.code == 2, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("error[")]
    assert line.startswith("error[config]: step 1 on rank 0: sample ")
    assert re.search(r"has the label 4, but 3 classes allow 1 to 3 \(record \d+ of .*\)$", line)


@pytest.mark.slow
def test_small_resnet_learns_generated_classes_far_above_chance(tmp_path):
    """Ten classes of stripes: chance is 0.1, and the images of the validation were never trained on."""
    image_sets.write_tar(tmp_path / "train", image_sets.samples(640, classes=10))
    image_sets.write_tar(tmp_path / "valid", image_sets.samples(200, classes=10, first=10_000))
    result = run(
        TrainSpec(
            workload="resnet18",
            data=str(tmp_path / "train"),
            validation=str(tmp_path / "valid"),
            global_batch=32,
            epochs=4,
            settings={"recipe": "demo", "augment": False},
        )
    )
    assert result["metrics"][-1]["top1"] > 5 * 0.1, result["metrics"]
    assert result["losses"][-1] < result["losses"][0] / 2


@pytest.mark.slow
def test_compiled_model_has_the_losses_of_the_plain_one():
    plain, compiled = (
        run(
            TrainSpec(
                workload="trivial",
                data="dummy://32",
                global_batch=8,
                settings={"image_size": 32, "classes": 4, "compile": is_compiled},
                threads=1,
            )
        )
        for is_compiled in (False, True)
    )
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert compiled["workload"]["compile"] is True

# SPDX-License-Identifier: Apache-2.0
"""Tests the generated image datasets: formats, names, labels, reproducible bytes, resuming, broken images."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import penstock
from penstock import _native, errors
from penstock.atomic_file import PART_PREFIX
from penstock.datasets import image_scenes, images
from penstock.datasets.image_classes import COMBINATIONS, ImageClass
from penstock.datasets.image_plan import BROKEN_KINDS
from penstock.datasets.images import ImageSpec, generate

SMALL = {"images": 24, "classes": 4, "shards": 3, "width": 64, "height": 48, "median_bytes": 2500}


def small(**settings):
    made = {**SMALL, **settings}
    if made.get("format") == "folder":
        made.pop("shards")
    return ImageSpec(**made)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def examples(folder, split="train"):
    records = [one for path in sorted((folder / split).iterdir()) for one in _native.decode_tfrecord(path.read_bytes())]
    return [{k: [v] if isinstance(v, bytes) else v for k, v in record.items()} for record in records]


def members(folder, split="train"):
    found = {}
    for path in sorted((folder / split).iterdir()):
        with tarfile.open(path) as archive:
            found |= {member.name: archive.extractfile(member).read() for member in archive}
    return found


# ---------------------------------------------------------------- formats


def test_tfrecord_shards_have_the_names_and_features_of_imagenet(tmp_path):
    spec = small(validation=6)
    summary = generate(tmp_path, spec, jobs=1)
    assert sorted(p.name for p in (tmp_path / "train").iterdir()) == [f"train-{i:05d}-of-00003" for i in range(3)]
    assert [p.name for p in (tmp_path / "validation").iterdir()] == ["validation-00000-of-00001"]
    records = examples(tmp_path)
    assert (len(records), len(examples(tmp_path, "validation")), summary.records) == (24, 6, 30)
    for i, record in enumerate(records):
        (jpeg,), (label,) = record["image/encoded"], record["image/class/label"]
        picture = Image.open(io.BytesIO(jpeg))
        picture.load()
        assert record["image/width"] + record["image/height"] == list(picture.size)
        assert record["image/format"] == [b"JPEG"]
        assert label == spec.class_of("train", i).number + 1  # from 1, as in ImageNet
        assert record["image/class/synset"] == [f"n{label:08d}".encode()]
        assert record["image/class/text"] == [ImageClass(label - 1).text.encode()]
        assert record["image/filename"] == [f"n{label:08d}_{i}.JPEG".encode()]
        channels = {"RGB": (b"RGB", 3), "L": (b"Grayscale", 1), "CMYK": (b"CMYK", 4)}[picture.mode]
        assert (record["image/colorspace"][0], record["image/channels"][0]) == channels
        boxes = [record[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
        for xmin, ymin, xmax, ymax in zip(*boxes, strict=True):
            assert 0 <= xmin < xmax <= 1
            assert 0 <= ymin < ymax <= 1
        assert record["image/object/bbox/label"] == [label] * len(boxes[0])


def test_tar_shards_follow_webdataset_and_hold_the_same_images(tmp_path):
    generate(tmp_path / "record", small(), jobs=1)
    generate(tmp_path / "tar", small(format="tar"), jobs=1)
    assert sorted(p.name for p in (tmp_path / "tar/train").iterdir()) == [f"train-{i:06d}.tar" for i in range(3)]
    found = members(tmp_path / "tar")
    records = examples(tmp_path / "record")
    assert len(found) == 3 * len(records)
    for record in records:
        key = record["image/filename"][0].decode().removesuffix(".JPEG")
        facts = json.loads(found[f"{key}.json"])
        assert found[f"{key}.jpg"] == record["image/encoded"][0]
        assert int(found[f"{key}.cls"]) == facts["label"] == record["image/class/label"][0] - 1  # from 0
        assert (facts["width"], facts["height"]) == (record["image/width"][0], record["image/height"][0])
        assert facts["filename"] == f"{key}.JPEG"
    assert subprocess.run(
        ["tar", "tf", tmp_path / "tar/train/train-000000.tar"], check=True, capture_output=True
    ).stdout


def test_class_folders_are_those_of_image_folder(tmp_path):
    generate(tmp_path / "record", small(), jobs=1)
    generate(tmp_path / "folder", small(format="folder", validation=5), jobs=1)
    files = contents(tmp_path / "folder/train")
    want = {
        f"{record['image/class/synset'][0].decode()}/{record['image/filename'][0].decode()}": record["image/encoded"][0]
        for record in examples(tmp_path / "record")
    }
    assert files == want
    folders = sorted(p.name for p in (tmp_path / "folder/validation").iterdir())
    assert folders == ["n00000001", "n00000002", "n00000003", "n00000004"]


@pytest.mark.parametrize(
    ("kind", "image", "label", "first"),
    [("tfrecord", "image/encoded", "image/class/label", 1), ("tar", "jpg", "cls", 0), ("folder", "image", "label", 0)],
)
def test_penstock_open_reads_every_format(tmp_path, kind, image, label, first):
    spec = small(format=kind)
    generate(tmp_path, spec, jobs=1)
    dataset = penstock.open(tmp_path / "train").fields(
        image=penstock.image(32).of(image), label=penstock.tensor("int64", ()).of(label)
    )
    batches = list(penstock.Loader(dataset, batch_size=8))
    labels = np.concatenate([batch["label"] for batch in batches])
    assert np.bincount(labels - first).tolist() == [6, 6, 6, 6]
    assert all(batch["image"].std() > 10 for batch in batches)


@pytest.mark.parametrize("mode", ["CMYK", "L"])
def test_picture_without_rgb_is_decoded_as_by_pillow(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(image_scenes, "_CMYK", 1.0 if mode == "CMYK" else 0.0)
    monkeypatch.setattr(image_scenes, "_GREY", 1.0)
    generate(tmp_path, small(format="folder", images=4), jobs=1)
    (path, *_) = sorted(tmp_path.rglob("*.JPEG"))
    want = Image.open(path)
    assert want.mode == mode
    dataset = penstock.open(path).fields(image=penstock.image(want.height, want.width, crop="none", exact=True))
    (batch,) = penstock.Loader(dataset, batch_size=1)
    assert np.abs(batch["image"][0].astype(int) - np.asarray(want.convert("RGB"))).max() <= 2


# ---------------------------------------------------------------- statistics


def test_pictures_have_the_sizes_of_imagenet():
    made = image_scenes.library(500, 400)
    pictures = [
        made.picture(np.random.default_rng([5, i]), ImageClass(i), median_bytes=110_000, sigma=0.29) for i in range(400)
    ]
    logs = np.log([len(picture.jpeg) for picture in pictures])
    # The standard errors are 1.8 % of the median and 3.5 % of sigma.
    assert np.exp(np.median(logs)) == pytest.approx(110_000, rel=0.06)
    assert logs.std() == pytest.approx(0.29, rel=0.12)
    assert np.mean(np.exp(logs)) == pytest.approx(114_700, rel=0.06)
    skew = np.mean(((logs - logs.mean()) / logs.std()) ** 3)
    assert abs(skew) < 0.5  # lognormal: the logarithm is symmetric (standard error 0.12)
    sizes = [(picture.width, picture.height) for picture in pictures]
    assert 0.3 < sizes.count((500, 375)) / len(sizes) < 0.55
    assert 0.15 < np.mean([height > width for width, height in sizes]) < 0.35
    modes = [picture.mode for picture in pictures]
    assert 0 < modes.count("L") < 25
    opened = [Image.open(io.BytesIO(picture.jpeg)) for picture in pictures]
    assert [image.size for image in opened] == sizes
    assert 0.1 < np.mean([bool(image.getexif()) for image in opened]) < 0.3
    # Quality, not padding, makes the size: the coded data fill the file.
    tables = [image.quantization[0][0] for image in opened]
    assert len(set(tables)) > 5
    assert all(picture.jpeg.endswith(b"\xff\xd9") for picture in pictures)


@pytest.mark.parametrize(("size", "median"), [((224, 224), 20_000), ((800, 600), 200_000), ((64, 64), 2_000)])
def test_pictures_of_other_sizes_reach_the_median(size, median):
    made = image_scenes.library(*size)
    pictures = [
        made.picture(np.random.default_rng([6, i]), ImageClass(i), median_bytes=median, sigma=0.2) for i in range(60)
    ]
    assert np.median([len(picture.jpeg) for picture in pictures]) == pytest.approx(median, rel=0.1)


def test_classes_differ_in_their_attributes_and_names():
    classes = [ImageClass(number) for number in range(COMBINATIONS)]
    assert len({(one.hue, one.shape, one.texture) for one in classes}) == COMBINATIONS
    assert len({one.text for one in classes}) == len({one.synset for one in classes}) == COMBINATIONS
    assert len({one.hue for one in classes[:8]}) == len({one.shape for one in classes[:8]}) == 8


@given(
    images=st.integers(4, 60),
    classes=st.integers(1, 4),
    shards=st.integers(1, 4),
    validation=st.integers(0, 9),
    replicate=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
def test_plan_covers_every_image_once_with_unique_keys_and_balanced_labels(
    images, classes, shards, validation, replicate, seed
):
    spec = ImageSpec(
        images=images, classes=classes, shards=shards, validation=validation, replicate=replicate, seed=seed
    )
    tasks = list(spec.tasks())
    for split in spec.splits:
        covered = [image for task in tasks if task.split == split for image in range(task.first, task.stop)]
        assert covered == list(range(spec.images_of(split)))
        counts = np.bincount([spec.label(split, image) for image in covered], minlength=classes)
        assert counts.max() - counts.min() <= 1
    keys = [
        spec.key(split, image, copy)
        for split in spec.splits
        for image in range(spec.images_of(split))
        for copy in range(spec.copies_of(split))
    ]
    names = [name for task in tasks for name in spec.shard_names(task)]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names) == shards * replicate + (spec.shards_of("validation") if validation else 0)


def test_validation_shards_fit_into_the_digits_of_their_names():
    spec = ImageSpec(images=1000, classes=1, shards=1000, validation=200_000)
    (task,) = [task for task in spec.tasks() if task.split == "validation" and task.shard == 99_998]
    assert spec.shard_names(task) == ["validation-99998-of-99999"]


# ---------------------------------------------------------------- reproducible bytes, replicas, resuming


@pytest.mark.parametrize("kind", ["tfrecord", "folder"])
def test_generate_same_seed_same_bytes_whatever_the_processes(tmp_path, kind):
    spec = small(format=kind, images=300 if kind == "folder" else 24, validation=4, broken=4)
    seen = []
    generate(tmp_path / "one", spec, jobs=1, progress=lambda _bytes, done: seen.append(done))
    generate(tmp_path / "two", spec, jobs=2)
    generate(tmp_path / "other", small(format=kind, validation=4, broken=4, seed=9), jobs=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    one, other = (set(contents(tmp_path / name).values()) for name in ("one", "other"))
    assert not {data for data in one & other if data.startswith(b"\xff\xd8")}
    assert seen == sorted(seen)
    assert seen[-1] == spec.images + 4


def test_replicas_are_shards_of_their_own_with_unique_names(tmp_path):
    generate(tmp_path / "once", small(), jobs=1)
    summary = generate(tmp_path / "five", small(replicate=5), jobs=1)
    names = sorted(p.name for p in (tmp_path / "five/train").iterdir())
    assert names == [f"train-{i:05d}-of-00015" for i in range(15)]
    once, five = examples(tmp_path / "once"), examples(tmp_path / "five")
    assert (summary.records, summary.images, len(five)) == (120, 24, 120)
    assert len({record["image/filename"][0] for record in five}) == 120
    for i, record in enumerate(five):
        assert record["image/encoded"] == once[i % 24]["image/encoded"]
        assert record["image/class/label"] == once[i % 24]["image/class/label"]


@pytest.mark.parametrize("kind", ["tfrecord", "tar", "folder"])
def test_rerun_writes_only_what_is_missing(tmp_path, kind):
    spec = small(format=kind, replicate=2)
    generate(tmp_path, spec, jobs=1)
    whole = contents(tmp_path)
    assert generate(tmp_path, spec, jobs=1).written == 0
    files = sorted(p for p in (tmp_path / "train").rglob("*") if p.is_file())
    times = {p: p.stat().st_mtime_ns for p in files}
    files[1].unlink()
    (files[0].parent / f"{PART_PREFIX}0123").write_bytes(b"half")
    assert generate(tmp_path, spec, jobs=1).written == (1 if kind == "folder" else 8)
    assert contents(tmp_path) == whole
    assert [p for p in files if p.stat().st_mtime_ns != times[p]] == [files[1]]


@pytest.mark.parametrize("kind", ["tfrecord", "tar"])
def test_rerun_replaces_a_truncated_shard(tmp_path, kind, run_cli):
    spec = small(format=kind, validation=4)
    assert generate(tmp_path, spec, jobs=1).damaged == 0
    whole = contents(tmp_path)
    shard = sorted((tmp_path / "train").iterdir())[1]
    os.truncate(shard, 1000)
    argv = ["dataset", "images", str(tmp_path), "--images", "24", "--classes", "4", "--shards", "3", "--format", kind]
    argv += ["--validation", "4", "--size", "64x48", "--median-bytes", "2500", "--jobs", "2"]
    ran = run_cli(*argv)
    assert (ran.code, "damaged: 1 shard of another size than in dataset.json, written again" in ran.out) == (0, True)
    assert "written now: 8 of 28 records" in ran.out
    assert contents(tmp_path) == whole


def test_damaged_shard_is_found_after_a_kill_of_the_repair(tmp_path, monkeypatch):
    generate(tmp_path, small(), jobs=1)
    whole = contents(tmp_path)
    first, second, _ = sorted((tmp_path / "train").iterdir())
    first.unlink()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(images, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path, small(), jobs=1)
    assert json.loads((tmp_path / "dataset.json").read_bytes())["complete"] is False
    os.truncate(second, 1000)
    assert generate(tmp_path, small(), jobs=1).damaged == 1
    assert contents(tmp_path) == whole


def test_damaged_class_folder_is_refused_until_its_file_is_removed(tmp_path):
    spec = small(format="folder")
    generate(tmp_path, spec, jobs=1)
    whole = contents(tmp_path)
    first, second, *_ = sorted(p for p in (tmp_path / "train").rglob("*") if p.is_file())
    os.truncate(second, 10)
    first.unlink()
    for _ in range(2):
        with pytest.raises(errors.Corrupt, match=r"train: the images have .* bytes, but dataset\.json states"):
            generate(tmp_path, spec, jobs=1)
    second.unlink()
    generate(tmp_path, spec, jobs=1)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_verb_counts_copies_and_drawn_images(tmp_path, kind, run_cli):
    argv = [
        "dataset",
        "images",
        str(tmp_path),
        "--images",
        "24",
        "--classes",
        "4",
        "--format",
        kind,
        "--replicate",
        "5",
    ]
    argv += ["--size", "64x48", "--median-bytes", "2500", "--jobs", "1"]
    out = run_cli(*argv).out
    assert re.search(r"written now: 120 of 120 records in .* s, [0-9,]+ records/s\n", out)
    assert re.search(r"drawn now: 24 images, [0-9,]+ images/s; the rest are copies\n", out)
    assert "drawn" not in run_cli(*argv).out


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "dataset", "images", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _workers(process):
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_completes_with_the_same_bytes(tmp_path, number):
    settings = ["--images", "1500", "--classes", "10", "--shards", "30", "--size", "64x48", "--median-bytes", "2500"]
    out = tmp_path / "out"
    process = start(out, *settings, "--jobs", "2")
    deadline = time.monotonic() + 60
    while len(list(out.glob("train/train-*"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    workers = _workers(process)
    assert len(workers) >= 2
    # `timeout` and impatient users interrupt twice, the second time while the first interrupt is handled.
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.002)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), err
    # After SIGKILL, the workers notice the end of their parent within a second. multiprocessing has one more process.
    deadline = time.monotonic() + 10
    while any(Path("/proc", str(pid)).exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number == signal.SIGINT:
        assert not list(out.rglob(f"{PART_PREFIX}*"))
    manifest = json.loads((out / "dataset.json").read_text())
    assert manifest["complete"] is False
    before = {p: p.stat().st_mtime_ns for p in out.glob("train/train-*")}
    assert len(before) < 30
    assert {len(_native.decode_tfrecord(p.read_bytes())) for p in before} == {50}
    spec = ImageSpec(images=1500, classes=10, shards=30, width=64, height=48, median_bytes=2500)
    assert generate(out, spec, jobs=2).written == 1500 - 50 * len(before)
    assert all(p.stat().st_mtime_ns == was for p, was in before.items())
    generate(tmp_path / "whole", spec, jobs=1)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_run_killed_before_its_first_shard_completes(tmp_path, monkeypatch, kind):
    spec = small(format=kind, validation=4)
    prepare, calls_left = images.prepare_folder, []

    def killed(out, names):
        prepare(out, names)
        calls_left.pop()
        if not calls_left:
            raise KeyboardInterrupt

    monkeypatch.setattr(images, "prepare_folder", killed)
    for stop in range(1, 4):
        calls_left[:] = range(stop)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "out", spec, jobs=1)
    monkeypatch.undo()
    generate(tmp_path / "out", spec, jobs=1)
    generate(tmp_path / "whole", spec, jobs=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_killed_process_of_the_pool_is_reported_and_the_rest_is_kept(tmp_path):
    settings = ["--images", "1500", "--classes", "10", "--shards", "30", "--size", "64x48", "--median-bytes", "2500"]
    out = tmp_path / "out"
    process = start(out, *settings, "--jobs", "2")
    deadline = time.monotonic() + 60
    while len(list(out.glob("train/train-*"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(max(_workers(process)), signal.SIGKILL)
    stdout, err = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (3, "")
    assert "1 of 2 processes that write images ended unexpectedly" in err
    assert "hint: check the memory" in err
    spec = ImageSpec(images=1500, classes=10, shards=30, width=64, height=48, median_bytes=2500)
    assert 0 < generate(out, spec, jobs=2).written < 1500
    assert len(examples(out)) == 1500


def test_second_run_into_the_same_folder_is_refused(tmp_path):
    def second(_size_bytes, _records):
        with pytest.raises(errors.Busy, match="another run writes this dataset"):
            generate(tmp_path, small(), jobs=1)

    assert generate(tmp_path, small(), jobs=1, progress=second).written == 24
    assert generate(tmp_path, small(), jobs=1).written == 0


@pytest.mark.needs_root
@pytest.mark.parametrize("jobs", [1, 2])
def test_full_disk_is_named_and_whole_shards_are_kept(tmp_path, jobs):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "none", disk], check=True)
    try:
        spec = small(images=100, shards=10)
        with pytest.raises(errors.NoSpace, match="no space left on the disk") as caught:
            generate(disk / "out", spec, jobs=jobs)
        assert str(disk) in str(caught.value)
        assert not list(disk.rglob(f"{PART_PREFIX}*"))
        assert {len(_native.decode_tfrecord(p.read_bytes())) for p in disk.glob("out/train/*")} == {10}
        subprocess.run(["mount", "-o", "remount,size=2m", disk], check=True)
        assert 0 < generate(disk / "out", spec, jobs=jobs).written < 100
        assert len(examples(disk / "out")) == 100
    finally:
        subprocess.run(["umount", disk], check=True)


# ---------------------------------------------------------------- broken images, bad input


@pytest.mark.parametrize("kind", ["tfrecord", "tar", "folder"])
def test_broken_images_are_those_that_the_manifest_lists(tmp_path, kind):
    generate(tmp_path, small(format=kind, broken=8), jobs=1)
    listed = json.loads((tmp_path / "dataset.json").read_text())["broken"]
    assert sorted(one["kind"] for one in listed) == sorted(BROKEN_KINDS * 2)
    kinds = {one["key"]: one["kind"] for one in listed}
    if kind == "tfrecord":
        data = {
            record["image/filename"][0].decode(): (record["image/encoded"][0], record["image/class/label"][0] - 1)
            for record in examples(tmp_path)
        }
    elif kind == "tar":
        found = members(tmp_path)
        data = {
            name.replace(".jpg", ".JPEG"): (content, int(found[name.replace(".jpg", ".cls")]))
            for name, content in found.items()
            if name.endswith(".jpg")
        }
    else:
        data = {p.name: (p.read_bytes(), int(p.parent.name[1:]) - 1) for p in tmp_path.rglob("*.JPEG")}
    assert len(data) == 24
    for name, (jpeg, label) in data.items():
        what = kinds.get(name.removesuffix(".JPEG"))
        assert (label == 4) == (what == "label out of range")
        assert (jpeg == b"") == (what == "empty")
        assert jpeg.startswith(b"<html>") == (what == "not a JPEG")
        if what in (None, "label out of range", "truncated"):
            assert jpeg.startswith(b"\xff\xd8")
            assert jpeg.endswith(b"\xff\xd9") == (what != "truncated")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"images": 3}, "images: 3 are too few for 4 classes"),
        ({"classes": 1001}, "classes: 1001"),
        ({"shards": 25}, "shards: 25"),
        ({"format": "zip"}, "format: `zip`"),
        ({"width": 31}, "width of 31"),
        ({"height": 4000}, "height of 4000"),
        ({"median_bytes": 500_000}, "median-bytes: .*bits per pixel"),
        ({"median_bytes": 10}, "median-bytes"),
        ({"sigma": -1.0}, "sigma"),
        ({"seed": -1}, "seed"),
        ({"replicate": 0}, "replicate"),
        ({"broken": 25}, "broken: 25"),
        ({"format": "folder", "validation": 3}, "validation: 3 images do not fill 4"),
    ],
)
def test_impossible_setting_is_named(wrong, named):
    with pytest.raises(errors.ConfigError, match=named):
        small(**wrong)


def test_folder_of_others_or_of_another_dataset_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    with pytest.raises(errors.ConfigError, match=r"1 other files \(thesis.tex"):
        generate(tmp_path / "mine", small(), jobs=1)
    (tmp_path / "mine/thesis.tex").rename(tmp_path / "mine/dataset.json")
    with pytest.raises(errors.Corrupt, match=r"dataset\.json is not JSON"):
        generate(tmp_path / "mine", small(), jobs=1)
    generate(tmp_path / "set", small(), jobs=1)
    before = contents(tmp_path / "set")
    with pytest.raises(errors.ConfigError, match=r"it has seed = 0, but this run has 1 \(different: seed\)"):
        generate(tmp_path / "set", small(seed=1), jobs=1)
    with pytest.raises(errors.ConfigError, match="jobs"):
        generate(tmp_path / "set", small(), jobs=0)
    (tmp_path / "set/train/notes.txt").write_text("x")
    with pytest.raises(errors.ConfigError, match=r"notes\.txt"):
        generate(tmp_path / "set", small(), jobs=1)
    (tmp_path / "set/train/notes.txt").unlink()
    assert contents(tmp_path / "set") == before


def test_dataset_made_with_other_packages_is_not_completed(tmp_path, monkeypatch):
    generate(tmp_path, small(), jobs=1)
    whole = contents(tmp_path)
    monkeypatch.setattr(images, "made_with", lambda: {"pillow": "1.0"})
    assert generate(tmp_path, small(), jobs=1).written == 0  # nothing is missing
    (tmp_path / "train/train-00001-of-00003").unlink()
    with pytest.raises(errors.ConfigError, match=r"it has pillow = .*, but this run has 1\.0"):
        generate(tmp_path, small(), jobs=1)
    monkeypatch.undo()
    generate(tmp_path, small(), jobs=1)
    assert contents(tmp_path) == whole


# ---------------------------------------------------------------- the verb


def test_dataset_images_verb_prints_one_json_line(tmp_path, run_cli):
    argv = ["dataset", "images", str(tmp_path / "d"), "--images", "12", "--classes", "3", "--format", "tar"]
    argv += ["--size", "64x48", "--median-bytes", "2500", "--jobs", "1", "--broken", "1", "--shards", "2", "--json"]
    planned = run_cli(*argv, "--dry-run")
    assert not (tmp_path / "d").exists()
    made = run_cli(*argv)
    plan, facts = json.loads(planned.out), json.loads(made.out)
    assert (made.code, made.err) == (0, "")
    assert (facts["written"], facts["records"], facts["shards"], facts["broken"]) == (12, 12, 2, 1)
    stored = sum(p.stat().st_size for p in (tmp_path / "d/train").iterdir())
    assert facts["bytes_stored"] == stored
    assert plan["bytes_stored"] == pytest.approx(stored, rel=0.3)
    assert {**facts, "dry_run": True, "written": 0, "drawn": 0} == {**plan, "bytes_stored": stored}


@pytest.mark.parametrize("size", ["500", "500x", "x400", "500x400x3", "axb", "5e2x4"])
def test_dataset_images_verb_names_a_bad_size(tmp_path, run_cli, size):
    ran = run_cli("dataset", "images", str(tmp_path / "d"), "--images", "10", "--classes", "2", "--size", size)
    assert ran.code == 2
    assert f"`{size}` is not a size in pixels such as 500x400" in ran.err


def test_dataset_images_verb_into_a_store_is_refused(run_cli):
    ran = run_cli("dataset", "images", "s3://frames/train", "--images", "10", "--classes", "2")
    assert (ran.code, ran.out, "s3://frames/train" in ran.err) == (3, "", True)

# SPDX-License-Identifier: Apache-2.0
"""Tests that a write goes on after samples that raise, a store that dies, a full disk and a kill."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock.atomic_file import PART_PREFIX
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt, NoSpace, PenstockError, PreconditionFailed
from penstock.writer.destination import Destination

from .written import FORMATS, files, read, same, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Failing:
    """Samples that fail at one of them."""

    def __init__(self, count: int, at: int) -> None:
        self.count, self.at, self.started = count, at, []

    def __call__(self, start: int) -> Iterator[dict[str, Any]]:
        self.started.append(start)
        for number, sample in enumerate(some(self.count, start), start):
            if number == self.at:
                raise RuntimeError("the source broke")
            yield sample


@pytest.mark.parametrize("kind", FORMATS)
def test_write_continues_after_samples_that_raise(tmp_path, kind):
    options = {"format": kind, "shard_bytes": 700}
    with pytest.raises(RuntimeError, match="the source broke") as caught:
        penstock.write(Failing(40, 30), tmp_path / "a", **options)
    assert "shards of" in caught.value.__notes__[0]
    assert not (tmp_path / "a/.penstock/manifest.json").exists()
    assert not list((tmp_path / "a").glob(f"{PART_PREFIX}*"))
    again = Failing(40, -1)
    written = penstock.write(again, tmp_path / "a", **options)
    assert 0 < written.skipped <= 30
    assert again.started == [written.skipped - 1]
    penstock.write(some(40), tmp_path / "b", **options)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    manifests = [json.loads((tmp_path / name / ".penstock/manifest.json").read_text()) for name in "ab"]
    assert manifests[0]["statistics"] == manifests[1]["statistics"]
    assert manifests[0]["fields"] == manifests[1]["fields"]


def test_write_refuses_to_continue_with_other_samples_or_settings(tmp_path):
    with pytest.raises(RuntimeError):
        penstock.write(Failing(40, 30), tmp_path, shard_bytes=700)
    with pytest.raises(
        ConfigError, match="an unfinished write with shard_bytes=700, but this write has shard_bytes=800"
    ):
        penstock.write(some(40), tmp_path, shard_bytes=800)
    changed = ({**sample, "label": 7} for sample in some(40))
    with pytest.raises(ConfigError, match=r"cannot continue after \d+ samples: sample \d+ differs"):
        penstock.write(changed, tmp_path, shard_bytes=700)
    with pytest.raises(ConfigError, match="there are only 3 samples now"):
        penstock.write(some(3), tmp_path, shard_bytes=700)
    with pytest.raises(PreconditionFailed, match="contains an unfinished write"):
        penstock.write(some(40), tmp_path, shard_bytes=700, if_exists="error")
    assert penstock.write(some(5), tmp_path, format="tar", if_exists="overwrite").skipped == 0
    assert list(files(tmp_path)) == ["shard-000000.tar"]


def test_write_parquet_refuses_to_continue_with_other_samples(tmp_path):
    with pytest.raises(RuntimeError):
        penstock.write(Failing(40, 30), tmp_path, format="parquet", shard_bytes=700)
    for name, other in (("jpg", b"other"), ("x", np.zeros((2, 3), np.int16)), ("text", "other"), ("label", 7)):
        changed = ({**sample, name: other} for sample in some(40))
        with pytest.raises(ConfigError, match=r"cannot continue after \d+ samples: sample \d+ differs"):
            penstock.write(changed, tmp_path, format="parquet", shard_bytes=700)
    assert penstock.write(some(40), tmp_path, format="parquet", shard_bytes=700).skipped > 0


def test_write_forgets_shards_that_were_written_ahead(tmp_path):
    with pytest.raises(RuntimeError):
        penstock.write(Failing(60, 50), tmp_path / "a", shard_bytes=700)
    records = sorted((tmp_path / "a/.penstock/write").glob("shard-*.json"))
    assert len(records) > 3
    records[1].unlink()  # as if a worker had been killed before the others

    def longer(start: int) -> Iterator[dict[str, Any]]:
        """Samples that differ after those in whole shards."""
        for at, sample in enumerate(some(60, start), start):
            if at == 20:
                raise RuntimeError("the source broke")
            yield sample if at < 10 else {**sample, "jpg": b"longer" * 20}

    with pytest.raises(RuntimeError):
        penstock.write(longer, tmp_path / "a", shard_bytes=700, workers=1)
    left = [json.loads(path.read_text()) for path in sorted((tmp_path / "a/.penstock/write").glob("shard-*.json"))]
    assert [shard["first"] for shard in left[1:]] == [shard["first"] + shard["samples"] for shard in left[:-1]]
    assert left[-1]["first"] + left[-1]["samples"] <= 20


def test_write_that_stored_no_shard_is_replaced_by_one_with_other_fields(tmp_path):
    with pytest.raises(ConfigError, match="sample 1: `n` is a str, instead of int"):
        penstock.write([{"n": 1}, {"n": "a"}], tmp_path)
    assert penstock.write([{"n": "1"}, {"n": "a"}], tmp_path, compress="gzip").samples == 2
    same(read(tmp_path), [{"n": "1"}, {"n": "a"}])


def test_write_overwrite_that_was_killed_can_only_be_repeated(tmp_path, monkeypatch):
    penstock.write(some(40), tmp_path, shard_bytes=700)
    with monkeypatch.context() as patch:
        patch.setattr(Destination, "delete", _delete_one)
        with pytest.raises(KeyboardInterrupt):
            penstock.write(some(40), tmp_path, shard_bytes=700, if_exists="overwrite")
    assert not (tmp_path / ".penstock/manifest.json").exists()
    assert files(tmp_path)
    with pytest.raises(ConfigError, match="an unfinished write with version=null"):
        penstock.write(some(40), tmp_path, shard_bytes=700)
    assert penstock.write(some(5), tmp_path, format="tar", if_exists="overwrite").samples == 5
    assert list(files(tmp_path)) == ["shard-000000.tar"]


def _delete_one(at: Destination, names: Iterable[str]) -> None:
    """Delete one object, and stop if that was not all."""
    first, *others = names
    at.files.delete([first.encode()])
    if others:
        raise KeyboardInterrupt


def test_write_refuses_a_folder_with_a_dataset_or_other_files(tmp_path):
    penstock.write(some(3), tmp_path / "a")
    with pytest.raises(PreconditionFailed, match="contains a complete dataset"):
        penstock.write(some(3), tmp_path / "a")
    before = files(tmp_path / "a")
    assert penstock.write(some(3), tmp_path / "a", if_exists="overwrite").samples == 3
    assert files(tmp_path / "a") == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"contains 1 other objects \(mine.txt"):
        penstock.write(some(3), tmp_path / "b", if_exists="overwrite")
    assert list(files(tmp_path / "b")) == ["mine.txt"]


def test_write_keeps_files_that_appear_meanwhile(tmp_path):
    def samples() -> Iterator[dict[str, Any]]:
        for at, sample in enumerate(some(40)):
            if at == 20:
                (tmp_path / "README.md").write_text("mine")
            yield sample

    written = penstock.write(samples(), tmp_path, shard_bytes=700)
    assert (tmp_path / "README.md").read_text() == "mine"
    manifest = json.loads((tmp_path / ".penstock/manifest.json").read_text())
    assert [entry["key"] for entry in manifest["objects"]] == [
        f"shard-{at:06d}.tfrecord" for at in range(written.shards)
    ]
    same(read(tmp_path), list(some(40)))


def test_write_a_lost_shard_is_written_again(tmp_path):
    with pytest.raises(RuntimeError):
        penstock.write(Failing(40, 30), tmp_path / "a", shard_bytes=700, workers=1)
    (tmp_path / "a/shard-000001.tfrecord").unlink()
    (tmp_path / f"a/{PART_PREFIX}0").write_text("of a killed write")
    written = penstock.write(some(40), tmp_path / "a", shard_bytes=700)
    penstock.write(some(40), tmp_path / "b", shard_bytes=700)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert written.skipped < 20


def test_write_to_a_bucket_resumes_after_the_store_died(tmp_path, monkeypatch):
    folder = tmp_path / "bucket"
    folder.mkdir()
    server = Emulator(folder, access_key="AKIDEXAMPLE", secret_key="s" * 40)
    environment = {**server.env, "PENSTOCK_RETRY_BUDGET": "1s"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def until_dead(start: int) -> Iterator[dict[str, Any]]:
        for number, sample in enumerate(some(40, start), start):
            if number == 30:
                server.__exit__(None, None, None)
            yield sample

    with server, pytest.raises((PenstockError, OSError)):
        penstock.write(until_dead, server.url + "train/", format="tar", shard_bytes=3000, workers=1, timeout_s=2)
    with Emulator(folder, access_key="AKIDEXAMPLE", secret_key="s" * 40) as revived:
        for name, value in revived.env.items():
            monkeypatch.setenv(name, value)
        url = revived.url + "train/"
        written = penstock.write(lambda start: some(40, start), url, format="tar", shard_bytes=3000)
        assert written.skipped > 0
        dataset = penstock.open(url)
        assert dataset.rung == "manifest"
        same(read(url), list(some(40)))
    penstock.write(some(40), tmp_path / "local", format="tar", shard_bytes=3000)
    assert files(folder / "train") == files(tmp_path / "local")


@pytest.mark.needs_root
def test_write_full_disk_is_named_and_the_rest_follows(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "none", disk], check=True)
    try:
        samples = [{"x": np.full(1000, at, np.float32)} for at in range(60)]
        with pytest.raises(NoSpace, match=r"no space left on the disk|bytes free, but") as caught:
            penstock.write(samples, disk / "d", shard_bytes=16_000)
        complete = len(files(disk / "d/.penstock/write")) - 1  # and the settings
        assert f"{4 * complete} samples in {complete} complete shards are stored" in str(caught.value)
        assert "repeat the same call" in str(caught.value.hint)
        assert not list((disk / "d").glob(f"{PART_PREFIX}*"))
        subprocess.run(["mount", "-o", "remount,size=2m", disk], check=True)
        assert penstock.write(samples, disk / "d", shard_bytes=16_000).skipped > 0
        same(read(disk / "d"), samples)
    finally:
        subprocess.run(["umount", disk], check=True)


SLOW = """
import sys, time
import numpy as np
import penstock
def samples(start):
    for at in range(start, 400):
        time.sleep(float(sys.argv[2]))
        yield {"x": np.full(500, at, np.int32), "at": at}
print(penstock.write(samples, sys.argv[1], format=sys.argv[3], shard_bytes=20_000, compress="gzip").skipped)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "number"),
    [("tfrecord", signal.SIGKILL), ("tar", signal.SIGKILL), ("parquet", signal.SIGKILL), ("tar", signal.SIGINT)],
)
def test_write_killed_in_the_middle_continues_to_the_same_bytes(tmp_path, kind, number):
    def command(pause, folder):
        return [sys.executable, "-c", SLOW, str(folder), str(pause), kind]

    running = subprocess.Popen(command(0.01, tmp_path / "a"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    journal = tmp_path / "a/.penstock/write/shard-000002.json"
    for _ in range(600):
        if journal.exists():
            break
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(30) != 0
    running.stdout.close()
    assert not (tmp_path / "a/.penstock/manifest.json").exists()
    if number == signal.SIGINT:
        assert not list((tmp_path / "a").glob(".penstock-part-*"))
    again = subprocess.run(command(0, tmp_path / "a"), check=True, capture_output=True, text=True, timeout=60)
    assert int(again.stdout) > 0
    subprocess.run(command(0, tmp_path / "b"), check=True, capture_output=True, timeout=60)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert [row["at"] for row in read(tmp_path / "a")] == list(range(400))


def test_open_of_an_incomplete_dataset_is_refused(tmp_path):
    samples = Failing(40, at=25)
    with pytest.raises(RuntimeError, match="the source broke"):
        penstock.write(samples, tmp_path / "d", format="tar", shard_bytes=20_000)
    with pytest.raises(ConfigError, match="is not complete: its writer stopped"):
        penstock.open(tmp_path / "d")
    assert penstock.open(f"{tmp_path}/d/*.tar").samples < 25  # a pattern selects a part on purpose
    penstock.write(some(40), tmp_path / "d", format="tar", shard_bytes=20_000)
    assert penstock.open(tmp_path / "d").samples == 40
    shard = sorted((tmp_path / "d").glob("*.tar"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-512])
    stated = f"{shard.name} has {len(content) - 512:,} bytes, but the manifest of its dataset states {len(content):,}"
    with pytest.raises(Corrupt, match=stated):
        penstock.open(tmp_path / "d")
    shard.unlink()
    problem = rf"lacks 1 of the \d+ objects in its manifest; the first is {shard.name}"
    with pytest.raises(Corrupt, match=problem):
        penstock.open(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "copied")
    with pytest.raises(Corrupt, match=problem + r"; copy them too or, .* delete the copy of \.penstock/manifest\.json"):
        penstock.open(tmp_path / "copied")
    (tmp_path / "copied/.penstock/manifest.json").unlink()


def test_written_datasets_below_one_folder_are_open_together_without_a_scan(tmp_path, caplog):
    for name in ("a", "b/c", "other"):
        penstock.write(some(30), tmp_path / name, format="tar", shard_bytes=20_000)
    both = [tmp_path / "a", tmp_path / "b/c"]
    dataset = penstock.open(both)
    assert (dataset.rung, dataset.samples) == ("manifest", 60)
    assert penstock.open(tmp_path).samples == 90
    assert dict(dataset.schema().specs) == dict(penstock.open(tmp_path / "a").schema().specs)
    assert not caplog.records
    # Other fields: those of the whole are then read from the first object.
    penstock.write([{"x.txt": "one"}], tmp_path / "text", format="tar")
    assert penstock.open(tmp_path).samples == 91
    # A lost shard is noticed in a list of folders and in the folder above, but a pattern selects a part on purpose.
    shard = sorted((tmp_path / "b/c").glob("*.tar"))[1]
    shard.unlink()
    for place in (both, tmp_path, f"{tmp_path}/{{a,b/c}}/**"):
        with pytest.raises(
            Corrupt, match=rf"b/c/ lacks 1 of the \d+ objects in its manifest; the first is {shard.name}"
        ):
            penstock.open(place)
    assert penstock.open(f"{tmp_path}/{{a,b/c}}/*.tar").samples < 60
    assert penstock.open([tmp_path / "a", tmp_path / "other"]).samples == 60
    with pytest.raises(RuntimeError, match="the source broke"):
        penstock.write(Failing(40, at=25), tmp_path / "half", format="tar", shard_bytes=20_000)
    with pytest.raises(ConfigError, match="half/ is not complete: its writer stopped"):
        penstock.open([tmp_path / "a", tmp_path / "half"])

# SPDX-License-Identifier: Apache-2.0
"""Tests clips of videos: exact frames, ranges, order and resume, ends, damage, and videos in other records."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import av
import numpy as np
import pytest

import penstock
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt, MapFailed, Mismatch, NotFound
from penstock.feed.video_clips import check_whole

from .archives import tar
from .video_files import CODECS, number_of, write_video

OTHERS = sorted(CODECS.keys() - {"mp4", "mkv"})


class CountedFile(io.BytesIO):
    """Counts its reads and their bytes."""

    reads = bytes_read = 0

    def read(self, count=-1):
        data = super().read(count)
        self.reads, self.bytes_read = self.reads + 1, self.bytes_read + len(data)
        return data


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def clips(url, frames=8, size=(48, 64), **arguments):
    """Number of each frame of each clip, by key."""
    loader = penstock.Loader(penstock.video.open(url, frames, size=size, **arguments), batch_size=4, rank=0, world=1)
    return [
        (key, [number_of(frame) for frame in video])
        for batch in loader
        for key, video in zip(batch["key"], batch["video"], strict=True)
    ]


@pytest.mark.parametrize("kind", ["mp4", "mkv", *(pytest.param(kind, marks=pytest.mark.system) for kind in OTHERS)])
def test_video_clip_has_the_frames_at_its_times(tmp_path, kind):
    write_video(tmp_path / f"a.{kind}")
    for start in (0.0, 2.3, 4.4):
        first = round(start * 10)
        assert clips(tmp_path, start=start) == [(f"a.{kind}", list(range(first, first + 8)))]
    assert clips(tmp_path, start=1.0, stride=3)[0][1] == [10, 13, 16, 19, 22, 25, 28, 31]
    # 4 frames a second of a video of 10: the frame that is shown at 0, 0.25, 0.5, ... s.
    assert clips(tmp_path, start=0.0, fps=4)[0][1] == [0, 2, 5, 7, 10, 12, 15, 17]
    assert clips(tmp_path, start=3.0, fps=20)[0][1] == [30, 30, 31, 31, 32, 32, 33, 33]


def test_video_is_scaled_and_cut(tmp_path):
    write_video(tmp_path / "a.mp4", 4)
    # Bit 0 and 1 of 3 are white: 8 of 32 columns if they are scaled, 11 of 43 less the 5 that are cut.
    for crop, white in (("none", 8), ("center", 5)):
        dataset = penstock.video.open(tmp_path, 2, size=32, start=0.2, crop=crop)
        (batch,) = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
        assert batch["video"].shape == (1, 2, 32, 32, 3)
        assert batch["video"].dtype == np.uint8
        assert abs(int((batch["video"][0, 1, 16, :, 0] > 125).sum()) - white) <= 1
    wide = penstock.video.open(tmp_path, 1, size=(48, 64), start=0.3)
    (batch,) = penstock.Loader(wide, batch_size=1, rank=0, world=1)
    assert np.abs(batch["video"][0, 0, :, 4, 0].astype(int) - 220).max() < 12  # bit 0 of 3 is white
    assert np.abs(batch["video"][0, 0, :, 60, 0].astype(int) - 30).max() < 12


def test_video_tiles_cover_the_video_once(tmp_path):
    write_video(tmp_path / "a.mp4", 50)
    write_video(tmp_path / "b.mkv", 20)
    found = clips(tmp_path, start="tile")
    assert found == [("a.mp4", list(range(at, at + 8))) for at in range(0, 48, 8)] + [
        ("b.mkv", list(range(at, at + 8))) for at in (0, 8)
    ]


def test_video_random_clips_depend_on_seed_and_epoch_only(tmp_path):
    path = write_video(tmp_path / "cat" / "0.mp4") if (tmp_path / "cat").mkdir() is None else None
    for at in range(1, 12):
        folder = tmp_path / ("cat" if at % 2 else "dog")
        folder.mkdir(exist_ok=True)
        (folder / f"{at}.mp4").write_bytes(path.read_bytes())
    dataset = penstock.video.open(tmp_path, 4, size=(48, 64), stride=2).shuffle(seed=3)

    def passes(rank=0, world=1, state=None, epoch=0):
        loader = penstock.Loader(dataset, global_batch=4, rank=rank, world=world)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for batch in loader:
            for key, label, video in zip(batch["key"], batch["label"], batch["video"], strict=True):
                numbers = [number_of(frame) for frame in video]
                assert np.diff(numbers).tolist() == [2, 2, 2]
                assert label == (not key.startswith("cat"))
                found.append((key, numbers[0]))
        return found

    first = passes()
    assert len({begin for _, begin in first}) > 6
    assert all(0 <= begin <= 53 for _, begin in first)
    assert sorted(passes(0, 2) + passes(1, 2)) == sorted(first)
    assert dict(passes(epoch=1)) != dict(first)
    loader = penstock.Loader(dataset, global_batch=4, rank=0, world=1)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert sorted(passes(0, 2, state) + passes(1, 2, state)) == sorted(first[4:])


def test_video_another_cache_has_the_same_state(tmp_path, monkeypatch):
    write_video(tmp_path / "a.mp4", 20)
    dataset = penstock.video.open(tmp_path / "a.mp4", 2, size=16, start="tile").shuffle(seed=1)
    loader = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
    next(iter(loader))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "other"))
    again = penstock.video.open(tmp_path / "a.mp4", 2, size=16, start="tile").shuffle(seed=1)
    other = penstock.Loader(again, batch_size=1, rank=0, world=1)
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 9


def test_video_copied_folder_has_the_same_state(tmp_path):
    (tmp_path / "a").mkdir()
    write_video(tmp_path / "a" / "0.mp4", 20)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    os.utime(tmp_path / "b" / "0.mp4", (1, 1))
    loaders = [
        penstock.Loader(penstock.video.open(tmp_path / name, 2, size=16, start="tile"), batch_size=1, rank=0, world=1)
        for name in "ab"
    ]
    next(iter(loaders[0]))
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert len(list(loaders[1])) == 9


@pytest.mark.system
def test_video_without_cache_leaves_no_files(tmp_path):
    path = write_video(tmp_path / "a.mp4", 4)
    (tmp_path / "temporary").mkdir()
    program = f"""if True:
        import os, tempfile, penstock
        datasets = [penstock.video.open({str(path)!r}, 2, size=16) for _ in range(2)]
        assert len(os.listdir(tempfile.gettempdir())) == 1
        if (child := os.fork()) == 0:
            raise SystemExit
        os.waitpid(child, 0)
        assert len(list(penstock.Loader(datasets[0], batch_size=1, rank=0, world=1))) == 1"""
    variables = {**os.environ, "PENSTOCK_CACHE": "", "TMPDIR": str(tmp_path / "temporary")}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_video_end_repeats_the_last_frame(tmp_path):
    write_video(tmp_path / "a.mp4", 20)
    dataset = penstock.video.open(tmp_path, 8, size=(48, 64), start=1.7, mask="is_frame")
    (batch,) = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
    assert [number_of(frame) for frame in batch["video"][0]] == [17, 18, 19, 19, 19, 19, 19, 19]
    assert batch["is_frame"][0].tolist() == [True] * 3 + [False] * 5
    with pytest.raises(MapFailed, match=r"has 2\.000 s of video, but its clip starts at 3 s"):
        clips(tmp_path, start=3)


@pytest.mark.parametrize(
    ("kind", "fast"),
    [("mp4", False), *(pytest.param(*each, marks=pytest.mark.system) for each in (("mp4", True), ("mkv", False)))],
)
def test_video_clip_reads_its_ranges_only(tmp_path, monkeypatch, kind, fast):
    (tmp_path / "b").mkdir()
    path = write_video(tmp_path / "b" / f"a.{kind}", 150, gop=10, noise=40, height=96, width=128, sound=True, fast=fast)
    with Emulator(tmp_path) as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        dataset = penstock.video.open(f"{emulator.url}b", 4, size=(48, 64), start=10.2)
        before = emulator.stats()
        (batch,) = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
        read = {name: count - before[name] for name, count in emulator.stats().items() if name in ("gets", "bytes_out")}
    assert [number_of(frame) for frame in batch["video"][0]] == [102, 103, 104, 105]
    assert read["bytes_out"] < path.stat().st_size / 4
    assert read["gets"] <= 4


def test_video_index_is_made_once(tmp_path, caplog):
    write_video(tmp_path / "a.mp4", 10)
    penstock.video.open(tmp_path / "a.mp4", 2, size=16)
    penstock.video.open(tmp_path / "a.mp4", 4, size=16)
    assert sum("are read once" in record.message for record in caplog.records) == 1
    (kept,) = (tmp_path / "cache" / "records").glob("*.videos")
    kept.write_bytes(b"damaged")
    penstock.video.open(tmp_path / "a.mp4", 2, size=16)
    assert sum("are read once" in record.message for record in caplog.records) == 2


def test_video_has_no_length_for_batch_by(tmp_path):
    write_video(tmp_path / "a.mp4", 10)
    dataset = penstock.video.open(tmp_path / "a.mp4", 2, size=16)
    rule = penstock.budget(8, length="video")
    with pytest.raises(ConfigError, match="`video` is made by decoding the dataset's files"):
        len(penstock.Loader(dataset, batch_by=rule, rank=0, world=1))


def test_video_in_a_tar_is_decoded_from_its_bytes(tmp_path):
    data = write_video(tmp_path / "a.webm").read_bytes()
    path = tar(
        tmp_path / "a.tar",
        {f"{at}.{kind}": data if kind == "webm" else b"7" for at in range(3) for kind in ("cls", "webm")},
    )
    fields = {"video": penstock.raw().of("webm"), "label": penstock.tensor("int64", ()).of("cls")}
    decoder = penstock.video.Decoder(4, size=(48, 64), start=2.0, mask="is_frame")
    dataset = penstock.open(str(path)).fields(**fields).decode(decoder, threads=2)
    (batch,) = penstock.Loader(dataset, batch_size=3, rank=0, world=1)
    assert [[number_of(frame) for frame in video] for video in batch["video"]] == [[20, 21, 22, 23]] * 3
    assert batch["label"].tolist() == [7] * 3
    assert batch["is_frame"].all()


@pytest.mark.parametrize("kind", ["mp4", "mkv", "webm", "avi"])
def test_video_cut_off_file_is_corrupt(tmp_path, kind):
    path = write_video(tmp_path / f"a.{kind}", 30)
    data = path.read_bytes()
    for part in (0.02, 0.5, 0.9):
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(Corrupt, match=f"a.{kind} "):
            penstock.video.open(path, 4, size=16)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("mp4", {b"\n": True, b"\xff\xff\xff\xffnone": True, b"\0\0\x10\0free": False}),
        ("avi", {b"": True, b"\n": True}),
    ],
)
def test_video_with_bytes_after_its_end_is_whole(tmp_path, kind, ends):
    data = bytearray(write_video(tmp_path / f"a.{kind}", 4).read_bytes())
    if kind == "avi":
        data[4:8] = b"\xff" * 4  # as written to a pipe
    for end, is_whole in ends.items():
        (tmp_path / f"a.{kind}").write_bytes(data + end)
        if is_whole:
            assert clips(tmp_path, frames=2, start=0.2) == [(f"a.{kind}", [2, 3])]
        else:
            with pytest.raises(Corrupt, match="is a truncated video"):
                clips(tmp_path)


def test_video_of_many_boxes_is_checked_in_few_reads(tmp_path):
    data = write_video(tmp_path / "a.mp4", 4).read_bytes()
    file = CountedFile(data + b"\0\0\0\x08free" * 30_000)
    check_whole(file, "a.mp4")
    assert file.reads <= 10_001


def test_video_header_of_many_boxes_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    path = write_video(tmp_path / "b" / "a.mp4", 20)
    with path.open("ab") as out:
        out.write(b"\0\x20\0\0free".ljust(2 << 20, b"\0") * 6)  # gaps of less than 1 MiB are read, too
    with Emulator(tmp_path) as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        dataset = penstock.video.open(f"{emulator.url}b", 2, size=(48, 64), start=0.2)
        before = emulator.stats()["bytes_out"]
        (batch,) = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
        assert emulator.stats()["bytes_out"] - before < 1 << 18  # of 12.6 MB, at 8 places
    assert [number_of(frame) for frame in batch["video"][0]] == [2, 3]


def test_video_of_an_unknown_codec_is_corrupt(tmp_path):
    data = write_video(tmp_path / "a.mp4", 4).read_bytes()
    (tmp_path / "b.mp4").write_bytes(data.replace(b"avc1", b"QQQQ"))
    with pytest.raises(Corrupt, match=r"b\.mp4 has a video stream of a codec that PyAV cannot decode"):
        clips(tmp_path, frames=2, start=0.2)
    assert clips(tmp_path, frames=2, start=0.2, on_error="skip") == [("a.mp4", [2, 3])]


def test_video_metadata_may_be_latin_1(tmp_path):
    data = write_video(tmp_path / "a.mp4", 4).read_bytes()
    assert b"Lavf" in data
    (tmp_path / "a.mp4").write_bytes(data.replace(b"Lavf", b"caf\xe9"))
    assert clips(tmp_path, frames=2, start=0.2) == [("a.mp4", [2, 3])]


def test_video_of_too_many_tiles_is_corrupt(tmp_path):
    write_video(tmp_path / "a.mp4", 20)
    with av.open(str(tmp_path / "b.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 64, 48
        for pts in (0, 200_000):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts = pts
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    tiles = {"frames": 1, "fps": 1000, "start": "tile"}
    with pytest.raises(
        Corrupt, match=r"b\.mp4 has 20,000\.\d+ s of video, which are 25,000,125 clips \(at most 16,777"
    ):
        penstock.video.open(tmp_path, size=16, **tiles)
    penstock.video.open(tmp_path / "b.mp4", 1, size=16, fps=1, start="tile")
    dataset = penstock.video.open(tmp_path, size=16, on_error="skip", **tiles)
    assert {batch["key"][0] for batch in penstock.Loader(dataset.take(2), batch_size=1, rank=0, world=1)} == {"a.mp4"}


def narrow(width, height, first=0):
    """An MPEG-TS of frames of this size."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for pts in range(first, first + 10):
            frame = av.VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8), "rgb24")
            frame.pts = pts
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def test_video_too_narrow_to_be_cut_is_corrupt(tmp_path):
    with pytest.raises(Corrupt, match="frame of 16 x 4,000 pixels, which would have 512 x 128,000 pixels"):
        penstock.video.Decoder(2, size=512)(narrow(4000, 16), seed=1)
    changes = narrow(64, 48) + narrow(4000, 16, first=10)
    with pytest.raises(Corrupt, match="frame of 16 x 4,000 pixels"):
        penstock.video.Decoder(12, size=512, start=0)(changes, seed=1)
    assert penstock.video.Decoder(12, size=512, start=0, crop="none")(changes, seed=1)["video"].shape[0] == 12


def test_video_damaged_files_raise_or_are_left_out(tmp_path):
    write_video(tmp_path / "good.mp4", 20)
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("not a video" * 100)
    with pytest.raises(Corrupt, match=r"empty\.mp4 is empty"):
        penstock.video.open(tmp_path, 4, size=16)
    dataset = penstock.video.open(tmp_path, 2, size=(48, 64), start=0.5, on_error="skip")
    (batch,) = penstock.Loader(dataset, batch_size=3, rank=0, world=1)
    assert batch["key"] == ["good.mp4"]


def test_video_without_pictures_is_corrupt(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=48_000)
        tone = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.float32), "fltp", "mono")
        tone.sample_rate = 48_000
        container.mux(stream.encode(tone))
        container.mux(stream.encode())
    with pytest.raises(Corrupt, match="has no video stream"):
        penstock.video.open(tmp_path, 2, size=16)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    with pytest.raises(NotFound, match="has no video files among 1 objects"):
        penstock.video.open(tmp_path / "texts", 2, size=16)


def test_video_damage_is_handled_by_on_error(tmp_path):
    path = write_video(tmp_path / "a.mp4", 20)
    data = path.read_bytes()
    tar(tmp_path / "a.tar", {"0.mp4": data, "1.mp4": data[:900], "2.mp4": b"no video", "3.mp4": data})
    dataset = penstock.open(str(tmp_path / "a.tar")).fields(video=penstock.raw().of("mp4"))
    dataset = dataset.decode(penstock.video.Decoder(2, size=16), threads=1)
    loader = penstock.Loader(dataset, batch_size=4, rank=0, world=1, on_error="skip")
    (batch,) = loader
    assert batch["video"].shape == (2, 2, 16, 16, 3)
    assert loader.report()["skipped"] == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"frames": 0}, "0 frames"),
        ({"size": 0}, "0 x 0"),
        ({"stride": 0}, "stride 0"),
        ({"fps": 5, "stride": 2}, "cannot be combined with stride"),
        ({"fps": float("nan")}, "fps: must be above 0"),
        ({"start": "middle"}, "start: must be"),
        ({"crop": "left"}, "neither center nor none"),
    ],
)
def test_video_arguments_are_checked(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        penstock.video.Decoder(**{"frames": 4, "size": 16, **arguments})
    with pytest.raises(Mismatch, match="must be the bytes of a video"):
        penstock.video.Decoder(4, size=16)({"video": 3}, seed=0)

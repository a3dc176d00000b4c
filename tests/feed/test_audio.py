# SPDX-License-Identifier: Apache-2.0
"""Tests audio fields against libsndfile and torchaudio's resampling: formats, channels, clips, masks, damage, resume."""

from __future__ import annotations

import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import ConfigError, Corrupt, Mismatch

from .archives import tar
from .audio_files import FORMATS, encoded, reference, resampled, signal
from .tfrecords import example, frame


def one(folder, data, spec, name="a.bin"):
    (folder / name).write_bytes(data)
    dataset = penstock.open(f"{folder}/{name}", format=penstock.formats.files())
    (batch,) = penstock.Loader(dataset.fields(wave=spec.of("record")), batch_size=1, rank=0, world=1)
    return batch


def whole(folder, data, **arguments):
    return one(folder, data, penstock.audio(**arguments))["wave"].row(0)


@pytest.mark.parametrize("kind", FORMATS)
def test_audio_lossless_formats_equal_libsndfile(tmp_path, kind):
    for channels in (1, 2):
        data = encoded(signal(5000, channels), kind)
        have = whole(tmp_path, data, channels=channels)
        want, rate = reference(data)
        assert np.array_equal(have, want[:, 0] if channels == 1 else want)
        assert one(tmp_path, data, penstock.audio(channels=channels, rate="hz"))["hz"].tolist() == [rate]


def test_audio_int16_is_exact_for_16_bits(tmp_path):
    for kind in ("wav16", "flac16"):
        data = encoded(signal(), kind)
        have = whole(tmp_path, data, dtype="int16")
        assert have.dtype == np.int16
        assert np.array_equal(have, reference(data, "int16")[0][:, 0])
    loud = encoded(np.array([[1.5], [-1.5], [0.25]]), "wav_float")
    assert whole(tmp_path, loud, dtype="int16").tolist() == [32767, -32768, 8192]


@pytest.mark.parametrize(("kind", "rate", "channels"), [("mp3", 44_100, 2), ("mp3", 16_000, 1), ("vorbis", 22_050, 2)])
def test_audio_lossy_formats_agree_with_libsndfile(tmp_path, kind, rate, channels):
    data = encoded(signal(30_000, channels, rate), kind, rate)
    have, (want, _) = whole(tmp_path, data, channels=channels).reshape(-1, channels), reference(data)
    assert have.shape == want.shape  # the encoder's delay and padding are removed
    assert np.abs(have - want).max() < 2e-5
    # A clip has the values of the whole, without decoding from the start.
    clip = one(tmp_path, data, penstock.audio(rate, seconds=4000 / rate, start=20_000 / rate, channels=channels))
    assert np.array_equal(clip["wave"][0].reshape(channels, -1).T, have[20_000:24_000])


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_audio_resamples_as_torchaudio(tmp_path, rate):
    data = encoded(signal(9000, rate=rate), "flac16", rate)
    want = resampled(reference(data)[0][:, 0], rate, 16_000)
    have = whole(tmp_path, data, sample_rate=16_000)
    assert have.shape == want.shape
    assert np.abs(have - want).max() < 1e-6
    spec = penstock.audio(16_000, seconds=0.05, start=0.03, rate="hz")
    batch = one(tmp_path, data, spec)
    assert np.array_equal(batch["wave"][0], have[480:1280])
    assert batch["hz"].tolist() == [rate]


def test_audio_channels_mix_repeat_or_are_refused(tmp_path):
    stereo, mono = encoded(signal(100, 2)), encoded(signal(100, 1))
    want = reference(stereo)[0]
    assert np.array_equal(whole(tmp_path, stereo), want.mean(axis=1, dtype=np.float32))
    assert np.array_equal(whole(tmp_path, mono, channels=2), np.repeat(reference(mono)[0], 2, axis=1))
    clip = one(tmp_path, stereo, penstock.audio(16_000, seconds=0.005, channels=2))["wave"]
    assert clip.shape == (1, 2, 80)
    assert np.array_equal(clip[0], want[:80].T)
    with pytest.raises(Mismatch, match="has 2 channels, but the field needs 3"):
        whole(tmp_path, stereo, channels=3)


def test_audio_short_clip_is_padded_and_masked(tmp_path):
    data = encoded(signal(100))
    batch = one(tmp_path, data, penstock.audio(16_000, seconds=0.01, start=0.002, mask="is_wave"))
    assert np.array_equal(batch["wave"][0], np.pad(reference(data)[0][32:, 0], (0, 92)))
    assert batch["is_wave"].dtype == bool
    assert np.array_equal(batch["is_wave"][0], np.arange(160) < 68)
    with pytest.raises(Mismatch, match=r"has 0\.006 s of audio, but its clip starts at 1 s") as caught:
        one(tmp_path, data, penstock.audio(16_000, seconds=0.01, start=1))
    assert "start the clip earlier" in str(caught.value.hint)


def test_audio_random_clips_depend_on_seed_and_epoch_only(tmp_path):
    ramp = np.arange(4000)[:, None] / 32768
    path = tar(tmp_path / "a.tar", {f"{at}.wav": encoded(ramp) for at in range(40)})
    spec = penstock.audio(16_000, seconds=1000 / 16_000, start="random", dtype="int16").of("wav")
    dataset = penstock.open(str(path)).fields(wave=spec, key=penstock.raw().of("__key__"))

    def starts(seed, rank=0, world=1, epoch=0, state=None):
        loader = penstock.Loader(dataset.shuffle(seed=seed), global_batch=8, rank=rank, world=world)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for batch in loader:
            assert (np.diff(batch["wave"], axis=1) == 1).all()
            found += zip(batch["key"], batch["wave"][:, 0].tolist(), strict=True)
        return found

    first = starts(1)
    begins = [begin for _, begin in first]
    assert len(set(begins)) > 30
    assert 0 <= min(begins) < 400
    assert 2600 < max(begins) <= 3000
    assert sorted(starts(1, 0, 2) + starts(1, 1, 2)) == sorted(first)
    assert dict(starts(1, epoch=1)) != dict(first)
    loader = penstock.Loader(dataset.shuffle(seed=1), global_batch=8, rank=0, world=1)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = starts(1, 0, 2, state=state) + starts(1, 1, 2, state=state)
    assert sorted(rest) == sorted(first[16:])


@pytest.mark.system
def test_audio_is_read_from_every_kind_of_record(tmp_path):
    files = {f"k{at}": encoded(signal(300 + 10 * at, seed=at), "flac16") for at in range(3)}
    want = [reference(data)[0][:, 0] for data in files.values()]
    tar(tmp_path / "a.tar", {f"{key}.flac": data for key, data in files.items()})
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(example(audio=[data])) for data in files.values()))
    structs = [{"bytes": data, "path": key} for key, data in files.items()]
    pq.write_table(pa.table({"audio": structs}), tmp_path / "a.parquet")
    (tmp_path / "folder" / "yes").mkdir(parents=True)
    for key, data in files.items():
        (tmp_path / "folder" / "yes" / f"{key}.flac").write_bytes(data)
    (tmp_path / "folder" / "about.txt").write_text("three recordings")
    parts = {"a.tar": "flac", "a.tfrecord": "audio", "a.parquet": "audio.bytes", "folder": "record"}
    for name, part in parts.items():
        dataset = penstock.open(f"{tmp_path}/{name}")
        padded = penstock.audio(16_000, rate="hz").of(part).padded(mask="is_wave")
        (batch,) = penstock.Loader(dataset.fields(wave=padded), batch_size=3, rank=0, world=1)
        assert batch["wave"].shape == (3, 320)
        for row, mask, wave in zip(batch["wave"], batch["is_wave"], want, strict=True):
            assert np.array_equal(row[mask], wave), name
        assert batch["hz"].tolist() == [16_000] * 3


def test_audio_absent_recording_has_its_default(tmp_path):
    path = tar(tmp_path / "a.tar", {"0.wav": encoded(signal(80)), "0.txt": b"", "1.txt": b""})
    dataset = penstock.open(str(path))
    clip = penstock.audio(16_000, seconds=0.005, default=0, mask="is_wave", rate="hz").of("wav")
    (batch,) = penstock.Loader(dataset.fields(wave=clip), batch_size=2, rank=0, world=1)
    assert batch["is_wave"].all(axis=1).tolist() == [True, False]
    assert batch["hz"].tolist() == [16_000, 0]
    assert not batch["wave"][1].any()
    (batch,) = penstock.Loader(dataset.fields(wave=penstock.audio(default=()).of("wav")), batch_size=2, rank=0, world=1)
    assert np.diff(batch["wave"].offsets).tolist() == [80, 0]


def test_audio_lengths_make_buckets(tmp_path):
    sizes = [100, 900, 120, 800, 110, 850]
    path = tar(tmp_path / "a.tar", {f"{at}.wav": encoded(signal(size)) for at, size in enumerate(sizes)})
    dataset = penstock.open(str(path)).fields(wave=penstock.audio(16_000).of("wav").padded("bucket"))
    by = penstock.buckets("wave", [200, 1000], batch_sizes=[3, 3])
    loader = penstock.Loader(dataset.shuffle(seed=1), batch_by=by, rank=0, world=1)
    assert sorted(batch["wave"].shape for batch in loader) == [(3, 200), (3, 1000)]


def wav(*chunks, head=b"RIFF"):
    body = b"".join(name + struct.pack("<I", size) + data for name, size, data in chunks)
    return head + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def fmt(tag=1, channels=1, rate=16_000, block=2, bits=16):
    return b"fmt ", 16, struct.pack("<HHIIHH", tag, channels, rate, 0, block, bits)


DAMAGED = {
    "empty": (b"", "is empty"),
    "text": (b"no audio here", "is text, which penstock.audio does not read"),
    "noise": (bytes(range(1, 200)), "is not audio in a known format"),
    "first byte": (b"X" + encoded(signal(10))[1:], "is a WAV file whose first bytes are damaged"),
    "jpeg": (b"\xff\xd8\xff\xe0" + bytes(100), "is a JPEG image"),
    "no format": (wav((b"data", 4, bytes(4))), "its samples come before its format"),
    "no samples": (wav(fmt(), (b"data", 0, b"")), "contains 0 audio samples"),
    "no data": (wav(fmt()), "with no samples"),
    "rate 0": (wav(fmt(rate=0), (b"data", 4, bytes(4))), "1 channels at 0 Hz"),
    "huge rate": (wav(fmt(rate=2**32 - 1), (b"data", 4, bytes(4))), "at 4,294,967,295 Hz"),
    "0 channels": (wav(fmt(channels=0), (b"data", 4, bytes(4))), "0 channels"),
    "255 channels": (wav(fmt(channels=255), (b"data", 4, bytes(4))), "blocks of 2 bytes cannot hold 255 channels"),
    "block 0": (wav(fmt(block=0), (b"data", 4, bytes(4))), "blocks of 0 bytes cannot hold"),
    "codec": (wav(fmt(tag=0x55), (b"data", 4, bytes(4))), r"a WAV with MPEG samples \(format 0x0055.*does not read"),
    "24 bits in 4 bytes": (wav(fmt(block=4, bits=24), (b"data", 4, bytes(4))), "samples of 24 bits in 4 bytes"),
    "aiff": (b"FORM\0\0\0\x2eAIFFCOMM" + bytes(40), "is an AIFF file, which penstock.audio does not read"),
    "aac": (b"\xff\xf1\x50\x80\x1e\xdf\xfc\xde" + bytes(40), "is AAC, which penstock.audio does not read"),
    "mp2": (b"\xff\xfd\xa0\x04\x55\x44" + bytes(600), "is MPEG audio of layer I or II"),
    "size": (
        wav(fmt(), (b"data", 2**31 - 2**20, bytes(4))),
        r"ends inside its samples \(want 2,146,435,072 bytes, have 4\)",
    ),
    "large size": (wav(fmt(), (b"data", 2_500_000_000, bytes(4))), r"want 2,500,000,000 bytes, have 4\)"),
    "ds64 size": (
        wav(
            (b"ds64", 28, struct.pack("<QQQI", 0, 3 << 30, 0, 0)), fmt(), (b"data", 2**32 - 1, bytes(200)), head=b"RF64"
        ),
        r"want 3,221,225,472 bytes, have 200\)",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_audio_damaged_file_is_one_clear_error(tmp_path, case):
    data, problem = DAMAGED[case]
    with pytest.raises((Corrupt, Mismatch), match=problem) as caught:
        whole(tmp_path, data)
    assert "a.bin" in str(caught.value)


def test_audio_streamed_wav_reaches_to_the_end(tmp_path):
    samples = np.arange(50, dtype="<i2")
    for size in (2**32 - 1, 2**32 - 0x1000, 0x7FFF0000, 0x7FFFFFFF, 0x80000000):
        data = wav(fmt(), (b"LIST", 3, b"abc\0"), (b"data", size, samples.tobytes()))
        assert np.array_equal(whole(tmp_path, data, dtype="int16"), samples)
    big = samples.astype(">i2").tobytes()
    head = b"RIFX" + struct.pack(">I", 0) + b"WAVEfmt " + struct.pack(">IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    assert np.array_equal(whole(tmp_path, head + b"data" + struct.pack(">I", 100) + big, dtype="int16"), samples)


def test_audio_wav_headers_of_other_programs_are_read(tmp_path):
    samples = np.arange(50, dtype="<i2")
    # The program could not seek back to write the sizes.
    unset = b"RIFF" + struct.pack("<I", 8) + wav(fmt(), (b"data", 0, samples.tobytes()))[8:]
    assert np.array_equal(whole(tmp_path, unset, dtype="int16"), samples)
    guid = struct.pack(">IHH", 1, 0, 16) + b"\x80\0\0\xaa\0\x38\x9b\x71"
    head = struct.pack(">IHHIIHHHHI", 40, 0xFFFE, 1, 8000, 16000, 2, 16, 22, 16, 4) + guid
    big = b"RIFX" + struct.pack(">I", 160) + b"WAVEfmt " + head + b"data" + struct.pack(">I", 100)
    assert np.array_equal(whole(tmp_path, big + samples.astype(">i2").tobytes(), dtype="int16"), samples)


@pytest.mark.parametrize("kind", ["flac16", "mp3"])
def test_audio_tags_around_a_file_are_not_audio(tmp_path, kind):
    data = encoded(signal(5000), kind)
    head = b"ID3\x03\0\0\0\0\0\x20" + bytes(32)
    ape = b"\x01\0\0\0\0\0\0\0Year\0\x07APETAGEX" + struct.pack("<IIII", 1000, 46, 1, 0) + bytes(8)
    have = whole(tmp_path, head * 2 + data + ape + b"TAG" + b" " * 125)
    assert np.array_equal(have, whole(tmp_path, data))


def test_audio_mp3_of_an_encoder_without_delay_agrees_with_libsndfile(tmp_path):
    data = bytearray(encoded(signal(5000), "mp3"))
    at = data.index(b"LAME") + 21
    data[at : at + 3] = bytes(3)
    want = reference(bytes(data))[0][:, 0]
    have = whole(tmp_path, bytes(data))
    assert have.shape == want.shape
    assert np.abs(have - want).max() < 2e-5


@pytest.mark.parametrize("kind", ["wav16", "flac16", "mp3", "vorbis"])
def test_audio_cut_off_file_is_corrupt(tmp_path, kind):
    data = encoded(signal(20_000), kind)
    for part in (0.3, 0.6, 0.98):
        with pytest.raises(Corrupt):
            whole(tmp_path, data[: int(len(data) * part)])


def test_audio_cut_off_flac_gives_a_clip_before_the_cut(tmp_path):
    data = encoded(signal(20_000), "flac16")
    clip = one(tmp_path, data[: int(len(data) * 0.9)], penstock.audio(16_000, seconds=0.1))["wave"]
    assert np.array_equal(clip[0], reference(data)[0][:1600, 0])


def test_audio_damaged_flac_frame_is_corrupt(tmp_path):
    data = bytearray(encoded(signal(20_000), "flac16"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(Corrupt, match="damaged FLAC"):
        whole(tmp_path, bytes(data))
    # STREAMINFO states 2^36 - 1 samples.
    huge = bytearray(encoded(signal(200), "flac16"))
    huge[21:26] = bytes([huge[21] | 0x0F]) + b"\xff\xff\xff\xff"
    with pytest.raises(Corrupt, match="it states 68,719,476,735 samples"):
        whole(tmp_path, bytes(huge))


def ogg_pages(data):
    """Yields the bounds of the pages of an Ogg file."""
    at = 0
    while at < len(data):
        lengths = data[at + 27 : at + 27 + data[at + 26]]
        yield at, at + 27 + len(lengths) + sum(lengths)
        at += 27 + len(lengths) + sum(lengths)


def test_audio_damaged_ogg_page_is_corrupt(tmp_path):
    data = encoded(0.3 * np.random.default_rng(0).standard_normal((110_000, 1)), "vorbis")
    bounds = list(ogg_pages(data))
    assert len(bounds) > 9
    files = {}
    for number, (start, end) in enumerate(bounds):
        damaged = bytearray(data)
        damaged[(start + end) // 2] ^= 1
        files |= {f"{number}-damaged.ogg": damaged, f"{number}-missing.ogg": data[:start] + data[end:]}
    tar(tmp_path / "a.tar", files)
    dataset = penstock.open(f"{tmp_path}/a.tar").fields(wave=penstock.audio(16_000, seconds=0.1, start=4).of("ogg"))
    loader = penstock.Loader(dataset, batch_size=4, rank=0, world=1, on_error="skip")
    assert sum(len(batch["wave"]) for batch in loader) == 0
    assert loader.report()["skipped"] == 2 * len(bounds)
    with pytest.raises(Corrupt, match=f"its page 4 at byte {bounds[3][0]:,} is damaged or missing"):
        whole(tmp_path, files["3-missing.ogg"])
    with pytest.raises(Mismatch, match="is a chained Ogg file"):
        whole(tmp_path, data + encoded(signal(9000, seed=2), "vorbis"))


@pytest.mark.system
@pytest.mark.parametrize("rate", [8000, 44_100])
def test_audio_vorbis_clips_equal_the_whole_at_all_positions(tmp_path, rate):
    # A tone has pages of 80,000 samples, and noise has pages of 5,000.
    tone = 0.3 * np.sin(0.17 * np.arange(4_000_000))
    noise = 0.3 * np.random.default_rng(0).standard_normal(400_000)
    for samples in (tone, noise):
        data = encoded(samples[:, None], "vorbis", rate)
        want = whole(tmp_path, data, max_seconds=1000)
        assert np.abs(want - reference(data)[0][:, 0]).max() < 2e-5
        for start in (*range(0, len(want), len(want) // 20), len(want) - 30_000, len(want) - 3000):
            clip = one(tmp_path, data, penstock.audio(rate, seconds=2000 / rate, start=start / rate))["wave"][0]
            part = want[start : start + 2000]
            assert np.array_equal(clip[: len(part)], part), start


def test_audio_mp3_clips_after_a_damaged_frame_are_corrupt_or_right(tmp_path):
    data = encoded(signal(60_000, rate=44_100), "mp3", 44_100)
    want = whole(tmp_path, data)
    start = data.index(b"\xff\xfb", len(data) // 2)
    damaged = bytearray(data)
    damaged[start + 4 : start + 36] = b"\xff" * 32  # its side information
    with pytest.raises(Corrupt, match="cannot be decoded"):
        whole(tmp_path, bytes(damaged))
    found = []
    for at in range(20_000, 50_000, 576):
        try:
            clip = one(tmp_path, bytes(damaged), penstock.audio(44_100, seconds=0.01, start=at / 44_100))["wave"][0]
        except Corrupt:
            found.append(False)
            continue
        found.append(True)
        assert np.array_equal(clip, want[at : at + 441]), at
    assert found[0]
    assert found[-1]
    assert not all(found)


def test_audio_folder_of_several_formats_is_one_dataset(tmp_path):
    for name, kind in (("a/0.wav", "wav16"), ("b/1.flac", "flac16"), ("b/2.ogg", "vorbis")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encoded(signal(), kind))
    (tmp_path / "notes.md").write_text("few words")
    dataset = penstock.open(tmp_path).fields(wave=penstock.audio(16_000, seconds=0.1, start=0).of("record"))
    assert dataset.samples == 3


def test_audio_few_samples_become_many(tmp_path):
    data = encoded(signal(300, rate=10), "wav_float", 10)
    want = resampled(reference(data)[0][:, 0], 10, 8000)
    assert len(want) > 3 << 16
    assert np.abs(whole(tmp_path, data, sample_rate=8000) - want).max() < 1e-6


def test_audio_longer_than_the_limit_is_corrupt(tmp_path):
    with pytest.raises(Mismatch, match=r"has 0\.375 s of audio, more than max_seconds 0\.3"):
        whole(tmp_path, encoded(signal()), max_seconds=0.3)


def test_audio_on_error_skips_and_counts(tmp_path):
    members = {f"{at}.wav": encoded(signal(100)) for at in range(4)}
    path = tar(tmp_path / "a.tar", {**members, "2.wav": members["2.wav"][:90]})
    dataset = penstock.open(str(path)).fields(wave=penstock.audio().of("wav"))
    loader = penstock.Loader(dataset, batch_size=4, rank=0, world=1, on_error="skip")
    (batch,) = loader
    assert np.diff(batch["wave"].offsets).tolist() == [100] * 3
    assert loader.report()["skipped"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sample_rate": 0}, "sample_rate: 0 is not"),
        ({"seconds": 1}, "need a sample_rate"),
        ({"sample_rate": 8000, "seconds": float("nan")}, "seconds: a clip must have .*got nan s"),
        ({"sample_rate": 8000, "seconds": 1e-9}, "seconds: a clip must have 1 to"),
        ({"channels": 0}, "channels: 0"),
        ({"dtype": "float64"}, "neither float32 nor int16"),
        ({"mask": "m"}, "for clips of fixed length"),
        ({"sample_rate": 8000, "seconds": 1, "mask": "m", "rate": "m"}, "mask and rate have the same name, m"),
        ({"sample_rate": 8000, "seconds": 1, "start": "middle"}, "start: must be"),
        ({"sample_rate": 8000, "seconds": 1, "start": -1}, "start: must be"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"default": 0}, r"default: must be `\(\)`, which means an empty recording"),
    ],
)
def test_audio_arguments_are_checked(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        penstock.audio(**arguments)


def test_audio_clips_of_fixed_length_refuse_padding():
    with pytest.raises(ConfigError, match="padded: clips of fixed length are padded already") as caught:
        penstock.audio(16_000, seconds=1).of("wav").padded(8, mask="is_wave")
    assert "mask=" in caught.value.hint


def test_audio_names_of_companions_are_distinct(tmp_path):
    dataset = penstock.open(str(tar(tmp_path / "a.tar", {"0.wav": encoded(signal(10))})))
    with pytest.raises(ConfigError, match="fields: two fields have the name hz; one of them is the mask or rate of a"):
        dataset.fields(a=penstock.audio(rate="hz").of("wav"), hz=penstock.tensor("int32", ()))


@pytest.mark.system
@pytest.mark.parametrize("kind", ["wav24", "flac16", "mp3", "vorbis"])
def test_audio_random_damage_neither_crashes_nor_allocates(tmp_path, kind):
    whole_file, rng = encoded(signal(8000, 2), kind), np.random.default_rng(7)
    members = {}
    for at in range(300):
        data = bytearray(whole_file)
        for _ in range(int(rng.integers(1, 8))):
            data[int(rng.integers(0, min(len(data), 10 ** int(rng.integers(1, 6)))))] = int(rng.integers(0, 256))
        members[f"{at:03}.x"] = bytes(data[: int(rng.integers(1, len(data)))] if at % 3 == 0 else data)
    dataset = penstock.open(str(tar(tmp_path / "a.tar", members))).fields(
        wave=penstock.audio(16_000, channels=1).of("x")
    )
    loader = penstock.Loader(dataset, batch_size=10, rank=0, world=1, on_error="skip", memory_bytes=300 << 20)
    rows = sum(len(batch["wave"].offsets) - 1 for batch in loader)
    assert rows + loader.report()["skipped"] == 300
    assert not any("panicked" in error for error in loader.report()["bad_samples"])

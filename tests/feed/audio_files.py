# SPDX-License-Identifier: Apache-2.0
"""Recordings for tests, written by libsndfile, and their resampling as torchaudio defines it."""

from __future__ import annotations

import io
import math

import numpy as np
import soundfile

FORMATS = {
    "wav8": ("WAV", "PCM_U8"),
    "wav16": ("WAV", "PCM_16"),
    "wav24": ("WAV", "PCM_24"),
    "wav32": ("WAV", "PCM_32"),
    "wav_float": ("WAV", "FLOAT"),
    "wav_double": ("WAV", "DOUBLE"),
    "wav_alaw": ("WAV", "ALAW"),
    "wav_ulaw": ("WAV", "ULAW"),
    "extensible16": ("WAVEX", "PCM_16"),
    "extensible24": ("WAVEX", "PCM_24"),
    "rf64": ("RF64", "PCM_16"),
    "flac16": ("FLAC", "PCM_16"),
    "flac24": ("FLAC", "PCM_24"),
}
"""Formats without loss, by name: libsndfile's format and subtype."""


def signal(frames=6000, channels=1, rate=16_000, seed=1):
    """Float64 [frames, channels]: tones with some noise, below 0.7."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames)[:, None] / rate
    tones = np.sin(2 * np.pi * (220 + 110 * np.arange(channels) + 30 * seed) * time)
    return 0.5 * tones + 0.05 * rng.standard_normal((frames, channels))


def encoded(samples, kind="wav16", rate=16_000):
    file_format, subtype = FORMATS.get(kind) or {"mp3": ("MP3", None), "vorbis": ("OGG", "VORBIS")}[kind]
    out = io.BytesIO()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(out, "w", rate, channels, subtype, format=file_format) as file:
        for at in range(0, len(samples), 1 << 16):  # a long array overflows the stack of libsndfile's Vorbis encoder
            file.write(samples[at : at + (1 << 16)])
    return out.getvalue()


def reference(data, dtype="float32"):
    """Array [frames, channels] as libsndfile decodes it, and the sample rate."""
    return soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)


def resampled(wave, orig, new):
    """`torchaudio.functional.resample` with its defaults, for one channel, in float64."""
    divisor = math.gcd(orig, new)
    orig, new = orig // divisor, new // divisor
    base = min(orig, new) * 0.99
    width = math.ceil(6 * orig / base)
    t = np.arange(0, -new, -1)[:, None] / new + np.arange(-width, width + orig)[None] / orig
    t = np.clip(t * base, -6, 6)
    kernels = np.sinc(t) * np.cos(t * np.pi / 12) ** 2 * base / orig
    padded = np.pad(np.asarray(wave, np.float64), (width, width + orig))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + orig)[::orig]
    return (windows @ kernels.T).reshape(-1)[: math.ceil(new * len(wave) / orig)]

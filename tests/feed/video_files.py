# SPDX-License-Identifier: Apache-2.0
"""Videos for tests, whose frames contain their numbers."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np

CODECS = {"mp4": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4", "mov": "mpeg4"}


def picture(number, height=48, width=64):
    """uint8 [height, width, 3]: a grey of 8 blocks, which are white for the bits of the number that are 1."""
    bits = (number >> np.arange(8)) & 1
    row = np.repeat(np.where(bits, 220, 30).astype(np.uint8), width // 8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def number_of(frame):
    """The number in a frame of any size."""
    height, width = frame.shape[:2]
    middles = frame[height // 2, (np.arange(8) * 2 + 1) * width // 16].mean(axis=1)
    return int((1 << np.arange(8))[middles > 125].sum())


def write_video(path, frames=60, rate=10, gop=12, *, noise=0, fast=False, sound=False, **size):
    """Write a video of the kind of the path's suffix. `fast` puts an MP4's header in front."""
    rng, options = np.random.default_rng(1), {"movflags": "faststart"} if fast else {}
    with av.open(str(path), "w", options=options) as container:
        first = picture(0, **size)
        stream = container.add_stream(CODECS[path.suffix[1:]], rate=rate)
        stream.width, stream.height, stream.pix_fmt = first.shape[1], first.shape[0], "yuv420p"
        stream.codec_context.gop_size = gop
        stream.options = {"crf": "18", "g": str(gop), "cpu-used": "8", "preset": "ultrafast", "bf": "2"}
        codecs = {".webm": "libopus", ".avi": "libmp3lame"}
        audio = container.add_stream(codecs.get(path.suffix, "aac"), rate=48_000) if sound else None
        for number in range(frames):
            pixels = picture(number % 256, **size)
            if noise:
                pixels = np.clip(pixels + rng.integers(-noise, noise + 1, pixels.shape), 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if audio is not None:
            silence = np.zeros((1, int(48_000 * (frames / rate + 0.3))), np.float32)
            tone = av.AudioFrame.from_ndarray(silence, "fltp", "mono")
            tone.sample_rate, tone.pts = 48_000, 0
            container.mux(audio.encode(tone))
            container.mux(audio.encode())
    return path

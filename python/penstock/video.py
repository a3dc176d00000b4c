# SPDX-License-Identifier: Apache-2.0
"""Public names of the video reader: datasets of clips, and a decoder for videos in other formats."""

from penstock.extras import require

require("penstock.video", "video")

from penstock.feed.video_clips import Decoder  # noqa: E402 - PyAV is there now
from penstock.feed.video_dataset import open  # noqa: A004, E402 - the verb is the API

__all__ = ["Decoder", "open"]

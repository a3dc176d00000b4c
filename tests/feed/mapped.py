# SPDX-License-Identifier: Apache-2.0
"""Functions for `map` tests, in a module that spawned processes can import."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import numpy as np


def plain(sample):
    return {"y": sample["y"][0] * 2, "x": sample["x"].astype("float32")}


def is_even(sample):
    return int(sample["y"][0]) % 2 == 0


def seeded(sample, seed):
    return {"y": sample["y"][0], "draw": np.random.default_rng(seed).integers(0, 2**40)}


def unseeded(sample):
    return {"y": sample["y"][0], "draw": random.randrange(2**40), "other": np.random.randint(2**30)}


def ragged(sample):
    count = int(sample["y"][0])
    return {"ids": list(range(count)), "name": f"sample {count}", "raw": bytes([count])}


def raises_at_7(sample):
    if sample["y"][0] == 7:
        raise KeyError("seven")
    return {"y": sample["y"][0]}


def changes_shape_at_7(sample):
    return {"y": np.zeros(7 if sample["y"][0] == 7 else 3)}


def dies_at_7(sample):
    if sample["y"][0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": sample["y"][0]}


def slow(sample):
    time.sleep(0.05)
    return {"y": sample["y"][0], "pid": os.getpid()}


def stays(sample):
    time.sleep(600)
    return sample


def no_dict(sample):
    return sample["y"]


def no_array(sample):
    return {"y": object()}


def twice(sample):
    return {"y": sample["y"] * 2}


def plain_y(sample):
    return {"y": sample["y"][0]}


def same(sample):
    return dict(sample)


def only_lists(sample):
    return {"name": f"sample {int(sample['y'][0])}"}


def waits_for_file(path, sample):
    while not path.exists():
        time.sleep(0.01)
    return sample


def parses(sample):
    return {"caption": json.loads(sample["json"])["caption"], "json": sample["json"], "seen": {sample["__key__"]: 1}}


def draws_by_torch(sample):
    import torch

    return {"y": sample["y"][0], "draw": torch.rand(1)}


def counts_boxes(sample):
    return {"lengths": np.diff(sample["boxes"].offsets).tolist()}

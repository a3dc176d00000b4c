# SPDX-License-Identifier: Apache-2.0
"""Functions for `decode` tests, in a module that spawned processes can import. A record is a number as text."""

from __future__ import annotations

import os
import signal
import time

import numpy as np


def number(record):
    return {"y": int(record)}


def drops_odd(record):
    return None if int(record) % 2 else {"y": int(record)}


def drops_all(record):
    return None


def mixed(record, seed):
    """From none to three samples, each with a draw."""
    value = int(record)
    generator = np.random.default_rng(seed)
    for part in range(value % 4):
        yield {"y": value, "part": part, "draw": generator.integers(2**40), "text": f"{value}/{part}"}


def adds_draw(sample, seed):
    return {**sample, "more": np.random.default_rng(seed).integers(2**40)}


def fails_at_5(record):
    if int(record) == 5:
        raise KeyError("five")
    return {"y": int(record)}


def changes_shape_at_9(record):
    return {"y": np.zeros(2 if int(record) == 9 else 3)}


def changes_dtype_at_9(record):
    return {"y": 0.5 if int(record) == 9 else 1}


class NoArray:
    """Cannot be converted, as a torch tensor with gradients."""

    def __array__(self, *_, **__):
        raise RuntimeError("it has gradients")


def returns_no_array(record):
    return {"y": NoArray()}


def returns_text(record):
    return "a text"


def returns_numbers(record):
    return [1, 2]


def hangs_at_5(record):
    if int(record) == 5:
        time.sleep(600)
    return {"y": int(record)}


KEPT = []


def leaks_and_is_killed(record):
    """Keeps 40 MB at each call, as a function that leaks, and ends as the system's out-of-memory killer ends it."""
    KEPT.append(np.ones(5_000_000))
    if int(record) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": int(record)}


def named(sample):
    """Takes a dict, because the dataset has two fields."""
    return {"y": int(sample["record"]), "key": sample["__key__"].decode()}

# SPDX-License-Identifier: Apache-2.0
"""Runs the real training on several paths concurrently, with one process per path and one torch thread per process.

With one thread, the losses are the same on any number of cores, and no torch threads spin while they wait
(docs/decisions/0601-demo-recipe.md). Each path needs its own process, because environment variables select the path.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from penstock import env, errors
from penstock.bench.results import RunRecord
from penstock.child_process import child_process
from penstock.train import rank_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.train import TrainSpec

__all__ = ["TrainingTask", "train_all"]

_POLL_S = 0.05
_GRACE_S = 5.0


class TrainingTask(msgspec.Struct, frozen=True):
    """Training of one path: its spec, and the environment variables that point to its store."""

    name: str
    spec: TrainSpec
    variables: Mapping[str, str]


def train_all(
    tasks: list[TrainingTask], work: Path, *, at_once: int, progress: Callable[[str], None]
) -> dict[str, RunRecord]:
    """Run all tasks; return the results by task name. The first failure stops all tasks and is raised unchanged.

    Args:
        work: Folder for the files of the child processes.
        at_once: Maximum number of concurrent child processes.
    """
    waiting = list(tasks)
    running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    done: dict[str, RunRecord] = {}
    with contextlib.ExitStack() as children:
        while waiting or running:
            while waiting and len(running) < at_once:
                task = waiting.pop(0)
                progress(task.name)
                running[task.name] = _start(children, task, work / f"learn-{task.name}")
            for name, (child, folder) in list(running.items()):
                if child.poll() is not None:
                    del running[name]
                    done[name] = _result(child, folder, name)
            time.sleep(_POLL_S)
    return done


def _start(children: contextlib.ExitStack, task: TrainingTask, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir()
    (folder / rank_files.SPEC).write_bytes(msgspec.json.encode(task.spec))
    with (folder / "log").open("wb") as log:
        child = child_process(
            [sys.executable, "-m", "penstock.train.worker", str(folder)],
            grace_s=_GRACE_S,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**env.read(), **task.variables, "OMP_NUM_THREADS": str(task.spec.threads or 1)},
            # With a new session, Ctrl-C reaches only the parent, which then ends the children.
            start_new_session=True,
        )
        return children.enter_context(child), folder


def _result(child: subprocess.Popen[bytes], folder: Path, name: str) -> RunRecord:
    if child.returncode == 0 and (folder / rank_files.RESULT).exists():
        return msgspec.json.decode((folder / rank_files.RESULT).read_bytes(), type=RunRecord)
    error_file = folder / rank_files.ERROR.format(rank=0)
    if error_file.exists():
        raise errors.from_wire(json.loads(error_file.read_bytes()))
    last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    raise errors.RankFailed(
        f"the training with path {name} failed with exit code {child.returncode}: {' '.join(last) or 'no output'}",
        rank=0,
    )

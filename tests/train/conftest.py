# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no folder of its own

from rank_kit import Job

from tests.ports import free_port


@pytest.fixture
def job(tmp_path):
    """`job(...)` starts `penstock train`; any process it left is killed at the end."""
    started: list[Job] = []

    def start(*arguments, name="job", env=None, cwd=None) -> Job:
        started.append(Job(arguments, tmp_path / f"{name}.log", env or {}, cwd or tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def ranks(job, tmp_path):
    """`ranks(2, ...)` starts each rank by itself in its own folder, as srun does: no launcher ends the others.
    `of_rank` has more arguments for some ranks.
    """

    def start(world: int, *arguments, name="rank", of_rank=None) -> list[Job]:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
        started = []
        for rank in range(world):
            folder = tmp_path / f"node{rank}"
            folder.mkdir(exist_ok=True)
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "GROUP_RANK": "0"}
            mine = (of_rank or {}).get(rank, ())
            started.append(job(*arguments, *mine, name=f"{name}{rank}", env={**meeting, **place}, cwd=folder))
        return started

    return start

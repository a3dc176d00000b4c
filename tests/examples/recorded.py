# SPDX-License-Identifier: Apache-2.0
"""Runs programs of examples/week under torchrun, unchanged. Records the samples of each batch, and kills a rank.

A process that has imported torch reads jobs from stdin and forks: so a job takes a second instead of ten. Torchrun's own
agent starts the ranks; only its start method differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

import penstock.torch

WEEK = Path(__file__).resolve().parents[2] / "examples" / "week"

_COLUMNS = {"fine_tuning": ("tokens",)}
"""Columns that identify a sample, for programs whose other columns depend on the rank's batch."""


def samples(program, batch):
    """A digest of each sample of a batch, without padding."""
    columns = [batch[name] for name in _COLUMNS.get(program, sorted(batch))]
    rows = len(columns[0].offsets) - 1 if isinstance(columns[0], penstock.Ragged) else len(columns[0])
    return [
        hashlib.blake2b(b"|".join(_bytes(column, row) for column in columns), digest_size=8).hexdigest()
        for row in range(rows)
    ]


def _bytes(column, row):
    cell = column.row(row) if isinstance(column, penstock.Ragged) else column[row]
    if isinstance(cell, (bytes, str)):
        return cell if isinstance(cell, bytes) else cell.encode()
    return (cell if hasattr(cell, "tobytes") else cell.numpy()).tobytes().rstrip(b"\0")


def rank(program, record, kill_at, *arguments):
    """Run a program in this rank. `record`/RANK.jsonl gets a line for each batch. If `kill_at` is at least 0, the last
    rank is killed when that batch is delivered.
    """
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lines = Path(record, f"{number}.jsonl")

    class Loader(penstock.torch.Loader):
        def __iter__(self):
            for at, batch in enumerate(super().__iter__()):
                with lines.open("a") as out:
                    out.write(json.dumps(samples(program, batch)) + "\n")
                if at == kill_at and number == world - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

    penstock.torch.Loader = Loader
    sys.path.insert(0, str(WEEK))
    import_module(program).main(*arguments)


def torchrun(job):
    """`torchrun --standalone --nproc-per-node N PROGRAM`, in this process."""
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job["env"])
    standalone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # the meaning of --standalone
    config, _, _ = config_from_args(parse_args([*standalone, "--nproc-per-node", str(job["world"]), job["program"]]))
    config.start_method = "fork"
    elastic_launch(config, rank)(job["program"], job["record"], job["kill_at"], *job["arguments"])


def main():
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.launcher.api
    import torch.distributed.run  # noqa: F401 - here, and not again in each fork

    for line in sys.stdin:
        started = []
        for job in json.loads(line):
            started.append(os.fork())
            if started[-1] == 0:
                code = 1
                try:
                    torchrun(job)
                    code = 0
                except BaseException:  # a fork must not return to the loop
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()

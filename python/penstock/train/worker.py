# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock.train.worker FOLDER`: runs one rank of a training that `launch` has started under torchrun.

Reads `spec.json` from FOLDER. Writes `progress.json` (rank 0) during the run, then `result.json` (rank 0) or
`error-RANK.json`. Prints nothing, because the parent process prints to the terminal.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from penstock import env, ranks
from penstock.errors import PenstockError, RankFailed, to_wire
from penstock.parent_death import end_with_parent
from penstock.train.rank_files import ALONE, ERROR, PROGRESS, RESULT, SPEC, write_json
from penstock.train.spec import TrainSpec

if TYPE_CHECKING:
    from penstock.train.progress import Progress

__all__ = ["exit_now", "main"]


def main(folder: Path) -> int:
    """Run the rank; return the exit code. An exception other than `PenstockError` is logged with its traceback."""
    # torchrun starts each rank in a separate session. Without this call, the ranks would continue after torchrun is
    # killed.
    end_with_parent()
    import time

    from penstock.train.launch import run_as_rank

    rank = ranks.detect(env.read())
    spec = msgspec.json.decode((folder / SPEC).read_bytes(), type=TrainSpec)

    def report(progress: Progress) -> None:
        write_json(folder / PROGRESS, progress)

    def failed(error: PenstockError) -> int:
        write_json(
            folder / ERROR.format(rank=rank.rank),
            {**to_wire(error), "seen_s": time.time()},
        )
        return error.exit_code

    try:
        record = run_as_rank(spec, rank, report=report, on_lost=lambda cause: exit_now(failed(cause)))
    except PenstockError as error:
        return failed(error)
    except Exception as error:
        traceback.print_exc()
        return failed(RankFailed(f"rank {rank.rank} failed: {type(error).__name__}: {error}", hint=ALONE))
    if rank.rank == 0:
        write_json(folder / RESULT, record)
    return 0


def exit_now(code: int) -> NoReturn:
    """End a rank that has finished and reported, without the interpreter's teardown.

    During teardown, torch 2.15 aborts in about one of ten runs of two gloo ranks ("terminate called without an active
    exception"), even with plain DDP and without Penstock. torchrun would report such a job as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_now(main(Path(sys.argv[1])))

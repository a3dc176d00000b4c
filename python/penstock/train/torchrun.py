# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock.train.torchrun FILE ARGUMENTS`: runs torchrun, and ends it if the parent process ends.

If a rank fails, the program writes the first failed rank and its exit code to FILE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from penstock.parent_death import end_with_parent

__all__ = ["FirstFailure", "main"]


class FirstFailure(msgspec.Struct, frozen=True):
    """The rank that failed first according to torchrun, and its exit code, which is negative for a signal."""

    rank: int
    code: int


def main(file: Path, arguments: list[str]) -> int:
    """Run torchrun with the arguments; return the exit code."""
    end_with_parent()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        file.write_bytes(msgspec.json.encode(FirstFailure(rank, failure.exitcode)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock.train.torchrun FILE ARGUMENTS`: torchrun that ends with its parent.

Records in FILE which rank failed first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from penstock.parent_death import end_with_parent

__all__ = ["FirstFailure", "main"]


class FirstFailure(msgspec.Struct, frozen=True):
    """The rank that ended first according to torchrun, and its exit code: negative for a signal."""

    rank: int
    code: int


def main(file: Path, arguments: list[str]) -> int:
    """Run torchrun; returns the exit code."""
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

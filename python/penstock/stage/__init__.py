# SPDX-License-Identifier: Apache-2.0
"""Stage: copies a dataset, or this node's share of it, to a folder or a store, and verifies the copy.

    import penstock
    staged = penstock.stage("s3://frames/train/", "/local/train", decompress=True)  # on all ranks of a training script

    from penstock import stage
    summary = stage.run("s3://frames/train/", "/local/train", decompress=True)  # in a single process

`index` lists a dataset into a manifest. `start` returns a running job; `run` waits until the job ends.
`raise_for_failures` raises the first error in a summary. `verify` reads a staged folder again, and `diff` compares two
datasets by their metadata. The core (`crates/stage`) does the work. This package provides what the core needs from the
environment: credentials, launchers and the working directory.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from penstock.stage.collective import Staged, everywhere
from penstock.stage.manifests import diff, index
from penstock.stage.run_stage import raise_for_failures, run, run_as, start, wait
from penstock.stage.spec import StageSpec
from penstock.stage.verification import VerifySpec, start_verify, verify

__all__ = [
    "StageSpec",
    "Staged",
    "VerifySpec",
    "diff",
    "everywhere",
    "index",
    "raise_for_failures",
    "run",
    "run_as",
    "start",
    "start_verify",
    "verify",
    "wait",
]


class _Room(ModuleType):
    """Module type that makes `penstock.stage(...)` callable, so that the module is also a function."""

    def __call__(self, source: str, destination: Any, **options: Any) -> Staged:
        return everywhere(source, destination, **options)


sys.modules[__name__].__class__ = _Room

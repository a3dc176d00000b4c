# SPDX-License-Identifier: Apache-2.0
"""Stage: bring a dataset, or this node's share of it, to a local folder, whole and verified.

    from penstock import stage
    summary = stage.run("s3://frames/train/", "/local/train", inflate=True)

`index` lists a dataset into a manifest; `start` gives a job to watch; `run` waits for it. `verify` reads a staged folder
again, and `diff` compares two datasets by what is known of them. The core does the work
(`crates/flow`); this room knows the environment: credentials, launchers, the working directory.
"""

from __future__ import annotations

from penstock.stage.check import diff, start_verify, verify
from penstock.stage.job import StageSpec, index, is_local, local_path, run, run_as, start, wait

__all__ = [
    "StageSpec",
    "diff",
    "index",
    "is_local",
    "local_path",
    "run",
    "run_as",
    "start",
    "start_verify",
    "verify",
    "wait",
]

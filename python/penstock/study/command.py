# SPDX-License-Identifier: Apache-2.0
"""Runs Penstock commands for a part of a study, as a user would, and returns their JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.child_process import child_process
from penstock.errors import Deadline, RankFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["penstock_json"]

_GRACE_S = 10.0


def penstock_json(
    *words: object, variables: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 600.0
) -> dict[str, Any]:
    """Run `penstock WORDS --json` and return the JSON document on the last line of its output.

    The command ends with this function, also after Ctrl-C. If the words contain `--`, --json is inserted before `--`.

    Raises:
        Deadline: The command did not end in time.
        RankFailed: The command ended with an exit code other than 0, or printed no JSON. The error contains the last
            messages of the command.
    """
    argv = [str(word) for word in words]
    at = argv.index("--") if "--" in argv else len(argv)
    argv[at:at] = ["--json"]
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd,
        "env": {**env.read(), **(variables or {})}, "start_new_session": True,
    }  # fmt: skip
    shown = f"penstock {' '.join(argv[:3])}"
    with child_process([sys.executable, "-m", "penstock", *argv], grace_s=_GRACE_S, **options) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise Deadline(f"{shown} did not end within {timeout_s:g} s") from None
    lines = out.decode(errors="replace").strip().splitlines()
    try:
        if child.returncode != 0:
            raise ValueError
        found: dict[str, Any] = json.loads(lines[-1] if lines else "")
    except ValueError:
        last = " ".join(err.decode(errors="replace").strip().splitlines()[-4:])
        raise RankFailed(f"{shown} ended with exit code {child.returncode}: {last or 'no message'}", rank=0) from None
    return found

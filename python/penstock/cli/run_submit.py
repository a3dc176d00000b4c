# SPDX-License-Identifier: Apache-2.0
"""Batch systems in `penstock run`: submits a job, exports it for other systems, and determines the index of this node
in a job.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.job.spec import Job
    from penstock.protocols import NodeSlice

__all__ = ["node_slice_of", "submit_or_export"]


def submit_or_export(
    job: Job, file: Path, runs: Path, *, form: str | None, resume: bool, waits: bool, as_json: bool, dry_run: bool
) -> int:
    """Export a job, submit it, or (with dry_run) print what would be submitted. Returns the exit code."""
    from penstock import env
    from penstock.job.export import write
    from penstock.job.export.request import ExportRequest
    from penstock.job.submit import plan, submit

    request = ExportRequest(job, file, runs, resume=resume)
    if form is not None:
        click.echo(write(form, request), nl=False)
        return 0

    if dry_run:
        script, text, line = plan(request, waits=waits)
        if as_json:
            planned = {"schema_version": 2, "name": job.name, "script": str(script), "text": text, "command": line}
            click.echo(json.dumps(planned))
            return 0
        click.echo(f"# {script}\n{text}# submit\n{shlex.join(line)}")
        return 0

    def on_submitted(job_id: str) -> None:
        click.echo(json.dumps({"schema_version": 2, "name": job.name, "job_id": job_id}) if as_json else job_id)

    return submit(request, env.read(), waits=waits, on_submitted=on_submitted)


def node_slice_of(node: int | None, nodes: int | None, meet: str | None) -> NodeSlice:
    """Return this node's index in its job, from the flags or the launcher's variables."""
    from penstock import env, ranks
    from penstock.errors import ConfigError
    from penstock.protocols import NodeSlice

    environment = env.read()
    place = ranks.place(environment, node, nodes)
    if meet is None and "MASTER_ADDR" in environment:
        meet = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '29500')}"
    host, _, port = (meet or ("" if place.nodes > 1 else "127.0.0.1:29500")).rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"--rendezvous: `{meet or ''}` is not HOST:PORT",
            where="--rendezvous",
            hint="give the first node's address and a free port",
        )
    return NodeSlice(place.node, place.nodes, (host, int(port)))

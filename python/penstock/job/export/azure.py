# SPDX-License-Identifier: Apache-2.0
"""Job export for Azure ML (a command job) and Azure Batch (a multi-instance task).

In Azure ML, each node runs its own part of the job. In Azure Batch, the first node starts all ranks with mpirun.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.job.export.request import ExportRequest

__all__ = ["azure_batch", "azureml"]

_CREDENTIAL = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|(ACCESS|API|ACCOUNT|PRIVATE)_?KEY", re.IGNORECASE)


def _job_command(request: ExportRequest, args: str) -> str:
    """Shell line that writes the job file on the node and runs it.

    Raises:
        ConfigError: `[run] env` sets a credential. Everyone who can see the job could read the credential in this line.
    """
    found = sorted(name for name in request.job.run.env if _CREDENTIAL.search(name))
    if found:
        raise ConfigError(
            f"run.env: {', '.join(found)} would be readable by everyone who can see the job on Azure",
            hint="remove the variables from [run] env, and use the identity of the compute cluster or put them into"
            " the image",
        )
    start = shlex.join(request.penstock(is_here=False))
    return f"echo {request.embedded} | base64 -d > job.toml && {start} run job.toml --output runs {args}".rstrip()


def azureml(request: ExportRequest) -> str:
    """Azure ML job specification for `az ml job create --file FILE`.

    Raises:
        ConfigError: The job has a pool, or lacks an image, a number of nodes or a compute cluster.
    """
    request.require_independent_nodes()
    want = request.submit
    if not want.compute:
        raise ConfigError("submit.compute: missing; Azure ML requires the name of a compute cluster")
    found: dict[str, Any] = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "experiment_name": "penstock",
        "display_name": request.job.name,
        "compute": f"azureml:{want.compute}",
        "environment": {"image": request.image},
        # Azure ML runs `command` on every node. Azure ML also sets variables for the node's number and the first node's
        # address.
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "resources": {"instance_count": request.nodes} | ({"instance_type": want.machine} if want.machine else {}),
        "limits": {"timeout": request.limit_s},
        "command": _job_command(
            request, f"--node $NODE_RANK --nodes {request.nodes} --rendezvous $MASTER_ADDR:$MASTER_PORT"
        ),
    }
    return json.dumps(found, indent=2) + "\n"


def azure_batch(request: ExportRequest) -> str:
    """Azure Batch job and task, in the format of the Batch REST API and of `az batch job|task create --json-file`.

    Raises:
        ConfigError: The pool of machines or the number of nodes is missing, or the launcher is not mpi.
    """
    want = request.submit
    if request.job.cluster.launcher != "mpi":
        raise ConfigError(
            f"cluster.launcher: {request.job.cluster.launcher} does not support the nodes of a Batch task",
            hint="set launcher = mpi",
        )
    if not want.compute:
        raise ConfigError(
            "submit.compute: missing; Azure Batch requires the name of a pool of machines with inter-node communication"
        )
    wall = f"PT{request.limit_s}S"
    task: dict[str, Any] = {
        "id": "run",
        "commandLine": f"/bin/sh -c {shlex.quote(_job_command(request, '--resume' if request.resume else ''))}",
        # Batch runs the coordination command on every node before `commandLine` on the first node. Here, that command
        # does nothing: its success on all nodes shows that they are ready.
        "multiInstanceSettings": {"numberOfInstances": request.nodes, "coordinationCommandLine": "/bin/true"},
        "constraints": {"maxWallClockTime": wall, "maxTaskRetryCount": 0},
    }
    if want.image:
        task["containerSettings"] = {"imageName": request.image, "containerRunOptions": "--network=host --ipc=host"}
    job = {
        "id": request.job.name,
        "poolInfo": {"poolId": want.compute},
        "constraints": {"maxWallClockTime": wall},
        "onAllTasksComplete": "terminatejob",
    }
    return json.dumps({"job": job, "task": task}, indent=2) + "\n"

# SPDX-License-Identifier: Apache-2.0
"""Job export for Kubernetes: an indexed Job with one pod per node, a Service, and a Secret with the job file.

Ranks find the first pod through the Service.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.job.export.request import ExportRequest

__all__ = ["kubernetes"]

_PORT = 29500
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def kubernetes(request: ExportRequest) -> str:
    """Manifests for `kubectl apply -f FILE`.

    Raises:
        ConfigError: The job has a pool, lacks an image or a number of nodes, or has a name that Kubernetes does not
            accept.
    """
    request.require_independent_nodes()
    want, name = request.submit, request.job.name.lower()
    if not _LABEL.fullmatch(name):
        raise ConfigError(
            f"name: `{name}` is not a valid Kubernetes name (letters, digits and dashes, starting with a letter)"
        )
    labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/instance": name}
    meta: dict[str, Any] = {"name": name, "labels": labels} | ({"namespace": want.namespace} if want.namespace else {})
    command = [
        *request.penstock(is_here=False), "run", "/etc/penstock/job.toml", "--output", f"{want.scratch}/runs", "--node", "$(PENSTOCK_INDEX)",
        "--nodes", str(request.nodes), "--rendezvous", f"{name}-0.{name}:{_PORT}",
    ]  # fmt: skip
    limits = {"nvidia.com/gpu": str(want.gpus_per_node)} if want.gpus_per_node else {}
    limits |= {"cpu": str(want.cores_per_node)} if want.cores_per_node else {}
    mounts = [
        {"name": "job", "mountPath": "/etc/penstock", "readOnly": True},
        {"name": "scratch", "mountPath": want.scratch},
    ]
    # Ranks in one pod share memory through /dev/shm. By default, /dev/shm of a pod has only 64 MiB.
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    container: dict[str, Any] = {
        "name": "penstock",
        "image": request.image,
        "command": command,
        "env": [{"name": "PENSTOCK_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}],
        "volumeMounts": mounts,
    }
    container |= {"resources": {"limits": limits}} if limits else {}
    container |= {"envFrom": [{"secretRef": {"name": want.secret}}]} if want.secret else {}
    pod: dict[str, Any] = {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            {"name": "job", "secret": {"secretName": name}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    # Place at most one pod on a host, so that a node does not share the host's disk and network link.
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    pod |= {"nodeSelector": {"node.kubernetes.io/instance-type": want.machine}} if want.machine else {}
    job = {
        "completions": request.nodes,
        "parallelism": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": request.limit_s,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    items = [
        # The job file is a Secret, not a ConfigMap, because `[run] env` may contain tokens.
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": meta,
            "type": "Opaque",
            "data": {"job.toml": request.embedded},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            # Publish addresses before the pods are ready, because ranks connect to each other while they start.
            "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
        },
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"

# SPDX-License-Identifier: Apache-2.0
"""A job for Kubernetes: an indexed Job whose every pod is a node, a service by which ranks find the first, the file as a Secret."""

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
    """For `kubectl apply -f FILE`.

    Raises:
        ConfigError: A pool, no image, no number of nodes, or a name that Kubernetes does not take.
    """
    request.require_independent_nodes()
    want, name = request.submit, request.job.name.lower()
    if not _LABEL.fullmatch(name):
        raise ConfigError(f"name: Kubernetes does not take `{name}`: letters, digits and dashes, a letter first")
    labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/instance": name}
    meta: dict[str, Any] = {"name": name, "labels": labels} | ({"namespace": want.namespace} if want.namespace else {})
    command = [
        *request.penstock(is_here=False), "run", "/etc/penstock/job.toml", "--runs", f"{want.scratch}/runs", "--node", "$(PENSTOCK_INDEX)",
        "--nodes", str(request.nodes), "--meet", f"{name}-0.{name}:{_PORT}",
    ]  # fmt: skip
    limits = {"nvidia.com/gpu": str(want.gpus_per_node)} if want.gpus_per_node else {}
    limits |= {"cpu": str(want.cores_per_node)} if want.cores_per_node else {}
    mounts = [
        {"name": "job", "mountPath": "/etc/penstock", "readOnly": True},
        {"name": "scratch", "mountPath": want.scratch},
    ]
    # Ranks of one pod share memory through /dev/shm, of which a pod has 64 MiB.
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
    # One pod a host: its disk and its link are one node's.
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
        # Not a ConfigMap: `[run] env` is where tokens are written.
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
            # Before they are ready: ranks look for each other as they start.
            "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
        },
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"

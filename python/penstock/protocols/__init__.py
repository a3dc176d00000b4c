# SPDX-License-Identifier: Apache-2.0
"""Interfaces of plug-ins, and their types. Does not import other packages of Penstock.

A plug-in package declares a factory as an entry point. Penstock's own plug-ins are declared in the same way:

    [project.entry-points."penstock.workloads"]
    mine = "mypackage:workload"          # called with no argument, returns a Workload
    [project.entry-points."penstock.launchers"]
    mine = "mypackage:launcher"          # called with (settings, environment), returns a Launcher
    [project.entry-points."penstock.containers"]
    mine = "mypackage:container"         # called with no argument, returns a Container
    [project.entry-points."penstock.engines"]
    mine = "mypackage:engine"            # called with (settings, environment), returns an Engine
"""

from __future__ import annotations

from penstock.protocols.engines import Access, Engine, Located, Pool, PoolSpec, Runner
from penstock.protocols.launchers import (
    Container,
    ContainerSpec,
    Exit,
    Launcher,
    Node,
    NodeSlice,
    OnLine,
    RankPrefix,
    RunRequest,
)
from penstock.protocols.workloads import Batch, Demand, InputField, StepCost, Workload, WorkloadSpec

__all__ = [
    "Access",
    "Batch",
    "Container",
    "ContainerSpec",
    "Demand",
    "Engine",
    "Exit",
    "InputField",
    "Launcher",
    "Located",
    "Node",
    "NodeSlice",
    "OnLine",
    "Pool",
    "PoolSpec",
    "RankPrefix",
    "RunRequest",
    "Runner",
    "StepCost",
    "Workload",
    "WorkloadSpec",
]

# SPDX-License-Identifier: Apache-2.0
"""Job file: nodes, provisioning, pool, stage, ranks, archive. Parsed once into frozen structs; refuses invalid jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.errors import ConfigError, NotFound
from penstock.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "ArchiveSection",
    "ClusterSection",
    "ContainerSection",
    "DemandSection",
    "Job",
    "MoneySection",
    "PoolSection",
    "ProvisionSection",
    "RunSection",
    "StageSection",
    "SubmitSection",
    "for_path",
    "load",
    "staged_leftover",
]

_MAX_NAME_CHARS = 40
# Keys under their old names, for one release.
_RENAMED = {
    **{(section, "deadline"): "timeout" for section in ("provision", "pool", "stage", "run", "archive")},
    ("stage", "inflate"): "decompress",
    ("demand", "inflated"): "compression_ratio",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ClusterSection(_Section, frozen=True):
    """`[cluster]`: the launcher that reaches the nodes.

    Attributes:
        settings: The launcher's own settings, as with `--set`.
        penstock: Command that starts Penstock on a node; by default this interpreter's, for a shared file system.
    """

    launcher: str = "local"
    nodes: int | str | None = None
    settings: dict[str, Any] = {}
    penstock: tuple[str, ...] = ()

    def given(self) -> dict[str, Any]:
        """The settings that the launcher is opened with."""
        return {**self.settings, **({} if self.nodes is None else {"nodes": self.nodes})}


class ProvisionSection(_Section, frozen=True):
    """`[provision]`: a script that is copied to `at` on every node and run there; once, until it changes."""

    script: str
    at: str
    timeout: str = "10min"


class PoolSection(_Section, frozen=True):
    """`[pool]`: like the flags of `penstock pool up`."""

    disk: str
    engine: str = "local"
    copies: int = 1
    settings: dict[str, Any] = {}
    timeout: str = "3min"


class StageSection(_Section, frozen=True):
    """`[stage]`: the dataset, of which every node copies its share to the pool, or to `destination` on its own disk."""

    source: str
    destination: str | None = None
    decompress: bool = False
    args: tuple[str, ...] = ()
    timeout: str = "2h"


class RunSection(_Section, frozen=True):
    """`[run]`: the workload. `{data}`, `{rank}`, `{world}`, `{local_rank}` and `{node}` in its arguments are replaced.

    Attributes:
        lost_node: Action when a node is lost: `abort` ends the job; `continue` keeps the ranks of the other nodes
            running; `restart` restores the objects that only the lost node held, and starts all ranks again on the
            remaining nodes.
    """

    argv: tuple[str, ...]
    ranks_per_node: int = 1
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: str = "24h"
    lost_node: Literal["abort", "continue", "restart"] = "abort"


class ContainerSection(_Section, frozen=True):
    """`[container]`: container of the ranks; staging and the pool run outside. See `protocols.ContainerSpec`.

    Attributes:
        binds: `/src:/dst` or `/src:/dst:ro`.
        data_at: Path of the staged dataset inside, and the value of `{data}`. A dataset with a URL keeps its URL.
        holds_launcher: mpirun also runs in the container, on every node: for images with their own MPI.
    """

    runtime: str
    image: str
    binds: tuple[str, ...] = ()
    data_at: str = "/data"
    gpus: bool = False
    cwd: str | None = None
    args: tuple[str, ...] = ()
    holds_launcher: bool = False


class ArchiveSection(_Section, frozen=True):
    """`[archive]`: outputs of the first node, or of all nodes (each below its name), to a store or a folder."""

    source: str
    to: str
    on: Literal["leader", "all"] = "leader"
    timeout: str = "1h"


class SubmitSection(_Section, frozen=True):
    """`[submit]`: requirements of the job on the system that it is submitted or exported to.

    Attributes:
        nodes: Number of nodes; by default that of `[cluster]`, if that is a number.
        limit: Maximum duration of the whole job.
        system: Batch system; by default that of `[cluster] launcher`.
        queue: Slurm's partition or PBS's queue.
        args: Further arguments of sbatch or qsub, such as `--constraint=nvme`; each becomes a directive.
        setup: Shell lines before Penstock starts, such as `module load cuda`.
        image: Container image with Penstock, for Kubernetes, Azure ML and Azure Batch.
        machine: Instance type of Kubernetes or Azure ML.
        compute: Compute cluster of Azure ML, or pool of Azure Batch.
        secret: A Kubernetes secret whose entries become variables of the job: credentials of stores.
        scratch: A folder on each pod's own disk.
    """

    nodes: int | None = None
    limit: str = "24h"
    system: Literal["slurm", "pbs"] | None = None
    queue: str | None = None
    account: str | None = None
    cores_per_node: int | None = None
    gpus_per_node: int = 0
    args: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    image: str | None = None
    machine: str | None = None
    compute: str | None = None
    namespace: str | None = None
    secret: str | None = None
    scratch: str = "/scratch"


class MoneySection(_Section, frozen=True):
    """`[money]`: prices for `--dry-run`.

    Attributes:
        node: An item of the price book, such as `azure-vm-nd40rs_v2`.
        region: Part of the region's name; by default the first region that the book lists.
        usd_per_node_hour: Price used instead of `node`.
        hours: Expected duration of the job.
        tier: Tier of the source's store; by default from its URL.
    """

    node: str | None = None
    region: str | None = None
    usd_per_node_hour: float | None = None
    hours: float | None = None
    tier: str | None = None


class DemandSection(_Section, frozen=True):
    """`[demand]`: how fast the ranks read; `penstock run` computes the break-even of a pool from it.

    Attributes:
        epoch: Duration of one epoch on these nodes if only computing limits it.
        node_rate: Instead of `epoch`: rate of stored bytes that one node reads, such as `0.25GB/s`.
        source: URL that the ranks read, for a job without `[stage]`.
        source_rate: The store's bandwidth to all nodes together; by default, its tier's.
        nic_rate: Rate of one node's network; by default unlimited.
        compression_ratio: Decompressed bytes over stored bytes.
    """

    epochs: int = 1
    epoch: str | None = None
    node_rate: str | None = None
    source: str | None = None
    source_rate: str | None = None
    nic_rate: str | None = None
    compression_ratio: float = 1.0


class Job(_Section, frozen=True):
    """A whole job file.

    Attributes:
        paths: The job runs over each of these paths, one after the other, and they are compared (`job.compare_paths`).
    """

    name: str
    run: RunSection
    paths: tuple[str, ...] = ()
    cluster: ClusterSection = ClusterSection()
    provision: ProvisionSection | None = None
    pool: PoolSection | None = None
    stage: StageSection | None = None
    container: ContainerSection | None = None
    archive: ArchiveSection | None = None
    submit: SubmitSection | None = None
    money: MoneySection | None = None
    demand: DemandSection | None = None


def load(path: Path, on_renamed: Callable[[str, str], None] = lambda _old, _new: None) -> Job:
    """Read a job file. `on_renamed` is called with each key under its old name, and its name now.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not TOML, or a value is invalid; the text names the key.
    """
    try:
        content = msgspec.toml.decode(path.read_bytes())
        for (name, old), new in _RENAMED.items():
            section = content.get(name)
            if isinstance(section, dict) and old in section:
                if new in section:
                    raise ConfigError(
                        f"{path}: [{name}] {old} and {new} are the same key; give only {new}", where=str(path)
                    )
                section[new] = section.pop(old)
                on_renamed(f"[{name}] {old}", new)
        job = msgspec.convert(content, Job)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", where=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", where=str(path)) from error
    try:
        _check(job)
        for which in job.paths:
            for_path(job, which)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", where=str(path), hint=error.hint) from error
    return job


def for_path(job: Job, path: str) -> Job:
    """The job with one of its paths.

    Raises:
        ConfigError: The path is unknown, or the job file lacks a section for it.
    """
    kind, _, which = path.partition(":")
    name = f"{job.name}-{re.sub(r'[^A-Za-z0-9]+', '-', path).strip('-')}"
    if len(name) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"paths: `{name}` is too long for a name (at most {_MAX_NAME_CHARS} characters)",
            hint="use a shorter job name",
        )
    if job.stage is None:
        raise ConfigError("paths: they need a [stage], whose source all paths read", where="paths")
    base = msgspec.structs.replace(job, name=name, paths=(), pool=None)
    stage = job.stage
    if kind == "stream" and not which:
        argv = tuple(arg.replace("{data}", stage.source) for arg in job.run.argv)
        return msgspec.structs.replace(base, stage=None, run=msgspec.structs.replace(job.run, argv=argv))
    if job.pool is None:
        raise ConfigError(f"paths: `{path}` needs the disk of a [pool]", where="paths")
    if kind == "staged" and not which:
        whole = (*stage.args, "--node", "0", "--nodes", "1")
        there = msgspec.structs.replace(stage, destination=_staged_dir(job, name), args=whole)
        return msgspec.structs.replace(base, stage=there)
    if kind == "pool":
        # The file's settings belong to the engine that it names.
        kept = job.pool.settings if which in ("", job.pool.engine) else {}
        pool = msgspec.structs.replace(job.pool, engine=which or job.pool.engine, settings=kept)
        return msgspec.structs.replace(base, pool=pool)
    if kind == "fuse" and which:
        settings = {"client": which, "source": stage.source}
        pool = PoolSection(disk=job.pool.disk, engine="fuse", settings=settings, timeout=job.pool.timeout)
        return msgspec.structs.replace(base, pool=pool, stage=None)
    raise ConfigError(f"paths: `{path}` is not one of pool, pool:ENGINE, staged, stream, fuse:CLIENT", where="paths")


def _staged_dir(job: Job, name: str) -> str:
    assert job.pool is not None
    return f"{job.pool.disk.rstrip('/')}{_dir_below_disk(name)}"


def _dir_below_disk(name: str) -> str:
    """Folder name below the disk, equal to a pool's, so that `pool audit` and `pool down` find it after a crash."""
    return f"/penstock-pool-{name}/data"


def staged_leftover(job: Job) -> str | None:
    """The disk on every node with a folder that is removed after this path; None without one."""
    there = job.stage.destination if job.stage is not None and job.pool is None else None
    return (
        there.removesuffix(_dir_below_disk(job.name)) if there and there.endswith(_dir_below_disk(job.name)) else None
    )


def _check(job: Job) -> None:
    if not _NAME.fullmatch(job.name):
        raise ConfigError(f"name: `{job.name}` is not a valid name (letters, digits and dashes, at most 40)")
    if not job.run.argv:
        raise ConfigError("run.argv: no command")
    if job.run.ranks_per_node < 1:
        raise ConfigError(f"run.ranks_per_node: {job.run.ranks_per_node} is less than 1")
    for part in (job.provision, job.pool, job.stage, job.run, job.archive):
        if part is not None:
            parse_seconds(part.timeout)
    if job.money is not None and (job.money.node is None) == (job.money.usd_per_node_hour is None):
        raise ConfigError(
            "money: it needs a node of the price book or usd_per_node_hour", hint="give exactly one of them"
        )
    if job.demand is not None:
        _check_demand(job.demand)
    if job.submit is not None:
        parse_seconds(job.submit.limit)
        if job.submit.nodes is not None and job.submit.nodes < 1:
            raise ConfigError(f"submit.nodes: {job.submit.nodes} is less than 1")
    if job.stage is not None and (job.pool is None) == (job.stage.destination is None):
        what = "both a destination and a [pool]" if job.pool else "neither a destination nor a [pool]"
        raise ConfigError(f"stage: it has {what}", hint="give exactly one of them for the dataset")
    if job.pool is not None and job.stage is None:
        raise ConfigError("pool: no [stage] fills it", hint="add a [stage] with a source")
    if job.stage is None and any("{data}" in arg for arg in job.run.argv):
        raise ConfigError("run.argv: it has {data}, but there is no [stage]")


def _check_demand(demand: DemandSection) -> None:
    if (demand.epoch is None) == (demand.node_rate is None):
        raise ConfigError("demand: it needs the time of an epoch or node_rate", hint="give exactly one of them")
    rates = [parse_rate(text) for text in (demand.node_rate, demand.source_rate, demand.nic_rate) if text is not None]
    times = [parse_seconds(demand.epoch)] if demand.epoch is not None else []
    if demand.epochs < 1 or not min([*rates, *times, demand.compression_ratio]) > 0:
        raise ConfigError("demand: epochs, times and rates must be above 0")

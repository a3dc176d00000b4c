# SPDX-License-Identifier: Apache-2.0
"""Job file: parses and validates a job in TOML, and returns it as frozen structs, one per section."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.cpu_binding import binding_kind
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
# Old key names, which are accepted for one release: section and old key -> new key.
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
        penstock: Command that starts Penstock on a node. The default uses this interpreter's path, and needs a file
            system that all nodes share.
    """

    launcher: str = "local"
    nodes: int | str | None = None
    settings: dict[str, Any] = {}
    penstock: tuple[str, ...] = ()

    def given(self) -> dict[str, Any]:
        """Settings for opening the launcher, including `nodes`."""
        return {**self.settings, **({} if self.nodes is None else {"nodes": self.nodes})}


class ProvisionSection(_Section, frozen=True):
    """`[provision]`: a script that is copied to `at` on every node, and runs once on every node. A changed script runs
    again.
    """

    script: str
    at: str
    timeout: str = "10min"


class PoolSection(_Section, frozen=True):
    """`[pool]`: the pool to start for the job. The keys correspond to the flags of `penstock pool up`."""

    disk: str
    engine: str = "local"
    copies: int = 1
    settings: dict[str, Any] = {}
    timeout: str = "3min"


class StageSection(_Section, frozen=True):
    """`[stage]`: the dataset. Every node copies its share of it to the pool, or to `destination` on its own disk."""

    source: str
    destination: str | None = None
    decompress: bool = False
    args: tuple[str, ...] = ()
    timeout: str = "2h"


class RunSection(_Section, frozen=True):
    """`[run]`: the workload. `{data}`, `{rank}`, `{world}`, `{local_rank}` and `{node}` in its arguments are replaced.

    Attributes:
        lost_node: Action when a node is lost: `abort` ends the job. `continue` keeps the ranks of all other nodes
            running. `restart` restores the objects that were stored only on the lost node, and starts all ranks again
            on the remaining nodes.
        bind: CPUs of each rank: `none`, `show`, `core`, `numa`, `near-gpu`, `near-nic[:DEVICE]` or `cpus:LIST/LIST`.
            By default, the launcher decides. See `protocols.RunRequest`.
    """

    argv: tuple[str, ...]
    ranks_per_node: int = 1
    bind: str | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: str = "24h"
    lost_node: Literal["abort", "continue", "restart"] = "abort"


class ContainerSection(_Section, frozen=True):
    """`[container]`: container in which the ranks run. Staging and the pool run outside. See `protocols.ContainerSpec`.

    Attributes:
        binds: `/src:/dst` or `/src:/dst:ro`.
        data_at: Path of the staged dataset inside the container, and the value of `{data}`. If the dataset has a URL,
            `{data}` is that URL.
        holds_launcher: mpirun also runs in the container, on every node. Use this for images with their own MPI.
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
    """`[archive]`: copies outputs of the first node, or of all nodes, to a store or a folder.

    With `on = "all"`, each node's outputs are stored below the node's name.
    """

    source: str
    to: str
    on: Literal["leader", "all"] = "leader"
    timeout: str = "1h"


class SubmitSection(_Section, frozen=True):
    """`[submit]`: requirements of the job on the system that it is submitted or exported to.

    Attributes:
        nodes: Number of nodes; by default `nodes` of `[cluster]`, if it is a number.
        limit: Maximum duration of the whole job.
        system: Batch system; by default, the batch system of `[cluster] launcher`.
        queue: Slurm partition or PBS queue.
        args: Further arguments of sbatch or qsub, such as `--constraint=nvme`; each becomes a directive in the script.
        setup: Shell lines before Penstock starts, such as `module load cuda`.
        image: Container image with Penstock, for Kubernetes, Azure ML and Azure Batch.
        machine: Instance type of Kubernetes or Azure ML.
        compute: Compute cluster of Azure ML, or pool of Azure Batch.
        secret: A Kubernetes secret with credentials of stores. The entries of the secret become environment variables
            of the job.
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
        tier: Tier of the source's store; by default derived from the source's URL.
    """

    node: str | None = None
    region: str | None = None
    usd_per_node_hour: float | None = None
    hours: float | None = None
    tier: str | None = None


class DemandSection(_Section, frozen=True):
    """`[demand]`: the read rate of the ranks, from which `penstock run` computes when a pool breaks even.

    Attributes:
        epoch: Duration of one epoch on these nodes if only computation limits it.
        node_rate: Alternative to `epoch`: rate at which one node reads stored bytes, such as `0.25GB/s`.
        source: URL that the ranks read, for a job without `[stage]`.
        source_rate: Total bandwidth of the store to all nodes; by default, the bandwidth of its tier.
        nic_rate: Network rate of one node; by default unlimited.
        compression_ratio: Decompressed bytes divided by stored bytes.
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
        paths: Paths to compare. The job runs over each of them in turn (`job.compare_paths`).
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
    """Read a job file. If it contains keys with old names, `on_renamed` is called with each old and new name.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not TOML, or a value is invalid; the error message contains the key.
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
    """Return a copy of the job that runs over only one of its paths.

    Raises:
        ConfigError: The path is unknown, or the job file lacks a section for it.
    """
    kind, _, which = path.partition(":")
    name = f"{job.name}-{re.sub(r'[^A-Za-z0-9]+', '-', path).strip('-')}"
    if len(name) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"paths: the name `{name}` is too long (at most {_MAX_NAME_CHARS} characters)",
            hint="use a shorter job name",
        )
    if job.stage is None:
        raise ConfigError("paths: requires a [stage], whose source all paths read", where="paths")
    base = msgspec.structs.replace(job, name=name, paths=(), pool=None)
    stage = job.stage
    if kind == "stream" and not which:
        argv = tuple(arg.replace("{data}", stage.source) for arg in job.run.argv)
        return msgspec.structs.replace(base, stage=None, run=msgspec.structs.replace(job.run, argv=argv))
    if job.pool is None:
        raise ConfigError(f"paths: `{path}` requires a [pool], whose disk it uses", where="paths")
    if kind == "staged" and not which:
        whole = (*stage.args, "--node", "0", "--nodes", "1")
        there = msgspec.structs.replace(stage, destination=_staged_dir(job, name), args=whole)
        return msgspec.structs.replace(base, stage=there)
    if kind == "pool":
        # The settings in the job file are valid only for the engine in the job file.
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
    """Path below the disk. A pool has the same path, so that `pool audit` and `pool down` find the folder after a
    crash.
    """
    return f"/penstock-pool-{name}/data"


def staged_leftover(job: Job) -> str | None:
    """Return the disk with the staged folder that must be removed after this path; None if the job has no such
    folder.
    """
    there = job.stage.destination if job.stage is not None and job.pool is None else None
    return (
        there.removesuffix(_dir_below_disk(job.name)) if there and there.endswith(_dir_below_disk(job.name)) else None
    )


def _check(job: Job) -> None:
    if not _NAME.fullmatch(job.name):
        raise ConfigError(f"name: `{job.name}` is not a valid name (letters, digits and dashes, at most 40)")
    if not job.run.argv:
        raise ConfigError("run.argv: must contain a command")
    if job.run.ranks_per_node < 1:
        raise ConfigError(f"run.ranks_per_node: must be at least 1 (got {job.run.ranks_per_node})")
    if job.run.bind is not None:
        try:
            binding_kind(job.run.bind)
        except ValueError as error:
            raise ConfigError(f"run.{error}") from None
    for part in (job.provision, job.pool, job.stage, job.run, job.archive):
        if part is not None:
            parse_seconds(part.timeout)
    if job.money is not None and (job.money.node is None) == (job.money.usd_per_node_hour is None):
        raise ConfigError(
            "money: requires either `node` (an item of the price book) or `usd_per_node_hour`",
            hint="give exactly one of them",
        )
    if job.demand is not None:
        _check_demand(job.demand)
    if job.submit is not None:
        parse_seconds(job.submit.limit)
        if job.submit.nodes is not None and job.submit.nodes < 1:
            raise ConfigError(f"submit.nodes: must be at least 1 (got {job.submit.nodes})")
    if job.stage is not None and (job.pool is None) == (job.stage.destination is None):
        what = "both a destination and a [pool]" if job.pool else "neither a destination nor a [pool]"
        raise ConfigError(f"stage: the job has {what}", hint="give exactly one of them for the dataset")
    if job.pool is not None and job.stage is None:
        raise ConfigError("pool: requires a [stage], which fills it", hint="add a [stage] with a source")
    if job.stage is None and any("{data}" in arg for arg in job.run.argv):
        raise ConfigError("run.argv: {data} requires a [stage]")


def _check_demand(demand: DemandSection) -> None:
    if (demand.epoch is None) == (demand.node_rate is None):
        raise ConfigError(
            "demand: requires either `epoch` (a duration) or `node_rate`", hint="give exactly one of them"
        )
    rates = [parse_rate(text) for text in (demand.node_rate, demand.source_rate, demand.nic_rate) if text is not None]
    times = [parse_seconds(demand.epoch)] if demand.epoch is not None else []
    if demand.epochs < 1 or not min([*rates, *times, demand.compression_ratio]) > 0:
        raise ConfigError("demand: epochs, times and rates must be above 0")

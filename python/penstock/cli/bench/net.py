# SPDX-License-Identifier: Apache-2.0
"""`penstock bench net`: measure latency, bandwidth and collectives between ranks, and find slow links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster.options import opened, reaching, settings_of
from penstock.cli.cluster.placement import BIND_HELP
from penstock.cli.parameters import BYTES, SECONDS, Several

if TYPE_CHECKING:
    from penstock.bench.net.plan import NetPlan
    from penstock.bench.net.result import NetResult
    from penstock.bench.net.verdict import NetVerdict
    from penstock.cluster import Cluster
    from penstock.ranks import Rank

__all__ = ["command"]

# Launchers whose ranks are MPI ranks.
_MPI_LAUNCHERS = ("mpi", "slurm", "pbs")
# Wait before MPI_Abort, so that mpirun can forward the error. MPI_Abort discards output that mpirun has not read.
_FORWARD_S = 0.3


@click.command("net")
@click.argument("tests", nargs=-1, metavar="[TEST]...")
@click.option(
    "--convention",
    type=click.Choice(["osu", "nccl"]),
    default="osu",
    show_default=True,
    help="Semantics and format: OSU's micro-benchmarks 5.3, or nccl-tests.",
)
@click.option(
    "--backend",
    type=click.Choice(["mpi", "gloo", "nccl"]),
    help="Communication library.  [default: mpi with --launcher mpi or slurm, else gloo]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Memory of the buffers; cuda is experimental.",
)
@click.option(
    "--ranks",
    type=int,
    help="Total number of ranks, spread evenly over the nodes.  [default: 2, or 1 for each of several nodes]",
)
@click.option("--min-size", type=BYTES, metavar="SIZE", help="Smallest message.  [default: that of the convention]")
@click.option(
    "--max-size", type=BYTES, metavar="SIZE", help="Largest message.  [default: 4 MiB, collectives 1 MiB; nccl 32 MiB]"
)
@click.option("--iterations", type=int, help="Timed iterations of each size.  [default: those of the convention]")
@click.option("--warm-up", type=int, help="Iterations before the clock starts.  [default: those of the convention]")
@click.option("--window", type=int, default=64, show_default=True, help="Messages in flight in bw and bibw.")
@click.option(
    "--pair",
    type=Several(int, "pair"),
    default="0,1",
    show_default=True,
    metavar="A,B",
    help="Ranks of latency, bw and bibw.",
)
@click.option(
    "-f", "--full", is_flag=True, help="OSU's full format: also minimum, maximum and iterations of collectives."
)
@click.option(
    "--pairs", is_flag=True, help="Measure every pair of ranks, and find the slow ones; without TEST nothing else."
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Rounds of --pairs; a figure is their median.")
@click.option(
    "--pairs-size",
    type=BYTES,
    default="1MiB",
    show_default=True,
    metavar="SIZE",
    help="Message size of the bandwidth of --pairs.",
)
@click.option(
    "--chart",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw --pairs as a heat map: a .svg or .png file.",
)
@click.option("--no-validate", is_flag=True, help="Do not check the received data at each size.")
@click.option(
    "--osu-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Also run OSU's programs from this folder, beside ours. Needs --launcher mpi or slurm.  [default: those on PATH]",
)
@click.option(
    "--nccl-tests-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Also run the programs of nccl-tests from this folder.  [default: those on PATH]",
)
@click.option(
    "--join-timeout",
    type=SECONDS,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time limit for all ranks to join; the error names the missing ones.",
)
@click.option(
    "--node-python",
    default="",
    metavar="PATH",
    help="Python interpreter with Penstock on the nodes.  [default: this one's path]",
)
@click.option("--bind", metavar="BINDING", help=BIND_HELP)
@reaching("10min")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for rows.jsonl, spec.toml, machine.json and net.json, for penstock report.",
)
@click.option("--label", default="", help="Name for the rows.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document on stdout: places, tables, pairs, fits and findings.",
)
def command(tests: tuple[str, ...], **given: Any) -> int:
    """Measure messages and collectives between ranks, and say what limits them.

    TEST is latency, bw, bibw, allreduce, allgather, reduce-scatter, bcast, alltoall or barrier, or the name of OSU's
    program; with --convention nccl, all_reduce_perf and so on, or sendrecv. Without TEST, all of them run. The tables on
    stdout have the format of OSU or of nccl-tests. The verdict is on stderr.

    Inside mpirun, srun or torchrun, this process is one of their ranks, and rank 0 prints.

    \b
    Examples:
      penstock bench net latency bw        # 2 ranks on this machine, over Gloo
      penstock bench net --launcher mpi --ranks 4 allreduce
      penstock bench net --launcher slurm --pairs --chart pairs.svg
      penstock bench net --launcher ssh --nodes a,b,c --pairs
      srun -N 2 penstock bench net --backend mpi latency bw
    """  # noqa: D301 - click's \b keeps the line breaks
    from penstock import env, ranks

    rank = ranks.detect(env.read())
    is_rank = rank.world > 1 and given["launcher"] == "local" and given["nodes"] is None and given["ranks"] is None
    plan = _plan(tests, given, rank if is_rank else None)
    if given["chart"] is not None:
        _check_chart(given["chart"], plan)
    return _as_rank(plan, rank, given) if is_rank else _on_cluster(plan, given)


def _plan(tests: tuple[str, ...], given: dict[str, Any], rank: Rank | None) -> NetPlan:
    from penstock.bench.net.plan import NetPlan, operations_of

    backend = given["backend"]
    if backend is None:
        is_mpi = given["launcher"] in _MPI_LAUNCHERS if rank is None else rank.launcher not in ("torchrun", "horovod")
        backend = "mpi" if is_mpi else "gloo"
    if len(given["pair"]) != 2:
        raise click.UsageError("--pair: needs two ranks, such as 0,1")
    convention = given["convention"]
    only_pairs = given["pairs"] and not tests
    return NetPlan(
        convention=convention, backend=backend, device=given["device"],
        operations=() if only_pairs else operations_of(tests, convention),
        min_bytes=given["min_size"], max_bytes=given["max_size"], iterations=given["iterations"], warm_up=given["warm_up"],
        window=given["window"], pair=given["pair"], matrix=given["pairs"], rounds=given["rounds"],
        matrix_bytes=given["pairs_size"], validates=not given["no_validate"], join_s=given["join_timeout"],
    )  # fmt: skip


def _check_chart(file: Path, plan: NetPlan) -> None:
    from penstock.errors import ConfigError
    from penstock.report.document import refuse_without_charts

    if not plan.matrix:
        raise ConfigError("--chart: requires --pairs, whose matrix it draws", hint="add --pairs")
    if file.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"--chart: {file} must end in .svg or .png", where="--chart")
    refuse_without_charts()


def _as_rank(plan: NetPlan, rank: Rank, given: dict[str, Any]) -> int:
    """Run this process as one rank of an outer launcher."""
    import sys
    import time

    from penstock.bench.net.launch import run_as_rank
    from penstock.bench.net.mpi_transport import abort_mpi, restart_with_mpich
    from penstock.cli.app import print_error
    from penstock.cli.bench.net_deadline import limited
    from penstock.cli.bench.net_table import NetTable
    from penstock.errors import PenstockError

    if plan.backend == "mpi":
        restart_with_mpich(["-m", "penstock", *sys.argv[1:]])
    table = NetTable(silent=given["as_json"], full=given["full"])
    # Ranks of torch watch the limit for joining themselves, and know which ranks are missing.
    join_s = plan.join_s if plan.backend == "mpi" else None
    with limited(rank.rank, given["timeout"], join_s) as on_stage:
        try:
            result = run_as_rank(plan, rank, on_message=table.message, on_stage=on_stage)
        except PenstockError as error:
            code = print_error(error)
            sys.stderr.flush()
            time.sleep(_FORWARD_S)
            abort_mpi()
            return code
    if rank.rank == 0:
        table.end(result)
        _deliver(result, table, given)
    return 0


def _on_cluster(plan: NetPlan, given: dict[str, Any]) -> int:
    from penstock import env, ranks
    from penstock.bench.net.launch import run_on_cluster
    from penstock.cli.bench.net_table import NetTable
    from penstock.errors import ConfigError

    settings = settings_of(given["settings"])
    launcher, nodes = given["launcher"], given["nodes"]
    if launcher == "local" and plan.backend == "mpi":
        raise ConfigError(
            "backend mpi: launcher local does not start MPI ranks",
            hint="set --launcher mpi, which runs mpirun on this machine",
        )
    if launcher == "mpi" and nodes is None and "nodes" not in settings and not ranks.in_batch_job(env.read()):
        nodes = "localhost"
    programs = _programs(plan, given)
    table = NetTable(silent=given["as_json"], full=given["full"])
    with opened(launcher, nodes, given["on"], given["settings"]) as cluster:
        a_node = _ranks_per_node(given["ranks"], len(cluster.nodes), plan.min_world)
        plan.check(a_node * len(cluster.nodes))
        result = run_on_cluster(
            plan, cluster, ranks_per_node=a_node, timeout_s=given["timeout"], python=given["node_python"],
            bind=given["bind"], on_message=table.message,
        )  # fmt: skip
        table.end(result)
        is_complete = _run_installed(programs, result, cluster, a_node, table, given)
    _deliver(result, table, given)
    return 0 if is_complete else 1


def _ranks_per_node(ranks: int | None, nodes: int, least: int) -> int:
    from penstock.errors import ConfigError

    if ranks is None:
        return 2 if nodes == 1 else 1
    if ranks < least:
        raise ConfigError(f"--ranks: {ranks} is below {least}", where="--ranks", hint=f"use at least {least} ranks")
    if ranks % nodes:
        raise ConfigError(
            f"--ranks: {ranks} cannot be spread evenly over {nodes} nodes",
            where="--ranks",
            hint=f"use a multiple of {nodes}",
        )
    return ranks // nodes


def _programs(plan: NetPlan, given: dict[str, Any]) -> dict[str, str]:
    """Return the path of the installed program of each operation, for comparison with Penstock's results."""
    from penstock.bench.net.installed import find_programs
    from penstock.errors import ConfigError

    folder, other = given["osu_dir"], given["nccl_tests_dir"]
    if plan.convention == "nccl":
        folder, other = other, folder
    if other is not None:
        raise ConfigError(
            f"{other}: contains programs of a different convention; this run uses {plan.convention}",
            hint="set --convention, and run the two conventions one after the other",
        )
    if plan.backend == ("mpi" if plan.convention == "osu" else "nccl"):
        return find_programs(plan, folder)
    if folder is not None:
        raise ConfigError(
            f"{folder}: its programs use {'MPI' if plan.convention == 'osu' else 'NCCL'}, and cannot be compared with "
            f"backend {plan.backend}",
            hint="set --launcher mpi or --launcher slurm" if plan.convention == "osu" else "set --backend nccl",
        )
    return {}


def _run_installed(
    programs: dict[str, str], result: NetResult, cluster: Cluster, a_node: int, table: Any, given: dict[str, Any]
) -> bool:
    """Run installed programs, and add their tables to the result; return whether all succeeded."""
    from penstock.bench.net.installed import run_program
    from penstock.cli.app import print_error
    from penstock.errors import PenstockError

    is_complete = True
    for operation, path in programs.items():
        try:
            theirs, text = run_program(
                result.plan, operation, path, cluster, ranks_per_node=a_node, timeout_s=given["timeout"],
                bind=given["bind"],
            )  # fmt: skip
        except PenstockError as error:  # keep Penstock's results, which are complete
            print_error(error)
            is_complete = False
            continue
        result.tables.append(theirs)
        if not given["as_json"]:
            click.echo(text, nl=False)
        table.compared(result.compared(theirs))
    return is_complete


def _deliver(result: NetResult, table: Any, given: dict[str, Any]) -> None:
    """Judge the result; write the rows, the chart and the JSON as requested."""
    import msgspec

    from penstock.bench.net.result import FILE
    from penstock.bench.net.verdict import judge
    from penstock.bench.results import provenance
    from penstock.bench.rows import write_results
    from penstock.report.document import write_whole

    verdict = judge(result)
    table.verdict(verdict, result)
    if given["chart"] is not None:
        _draw(result, verdict, given["chart"])
    rows = result.rows(label=given["label"])
    if given["output"] is not None:
        spec = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.to_builtins(result.plan).items()
        }
        spec["ranks"] = result.world
        write_results(given["output"], rows, spec={"net": spec}, provenance=provenance())
        write_whole(_document(result, verdict).decode(), given["output"] / FILE)
    if given["as_json"]:
        click.echo(_document(result, verdict))


def _document(result: NetResult, verdict: NetVerdict) -> bytes:
    import msgspec

    from penstock.bench.results import provenance

    compared = [each for theirs in result.tables if theirs.source != "penstock" for each in result.compared(theirs)]
    return msgspec.json.encode(
        {
            "schema_version": 2, **msgspec.to_builtins(result), "compared": compared, "verdict": verdict,
            "machine": provenance(),
        }
    )  # fmt: skip


def _draw(result: NetResult, verdict: Any, file: Path) -> None:
    from penstock.cli.bench.net_table import labels_of, topology_lines
    from penstock.report.pair_chart import export_pairs

    slow = {(each.a, each.b) for each in verdict.pairs if each.is_slow}
    topology = [*topology_lines(result.places), "", *(finding.text for finding in verdict.findings)]
    export_pairs(verdict.pairs, slow, labels_of(result.places), topology, file)
    click.echo(f"heat map: {file}", err=True)

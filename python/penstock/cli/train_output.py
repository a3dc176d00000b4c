# SPDX-License-Identifier: Apache-2.0
"""Output of `penstock train` for people: the run, where a step's time went, and what the data path costs."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["print_result"]

_PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "data_wait_s": "waiting for data",
    "slowest_rank_wait_s": "waiting for the slowest rank",
    "host_to_device_s": "host to device",
    "other_s": "other",
}


def print_result(result: dict[str, Any], runs: str, *, saved: bool) -> None:
    """Print a result as lines on stdout. Parts that take less than 0.1 % of a step are left out."""
    if result["data_path"]:
        _print_data_path(result["data_path"])
    else:
        _print_run(result)
    _print_breakdown(result["step_breakdown"])
    if result["checkpoints"]:
        _print_checkpoints(result["checkpoints"])
    facts = result["workload"]
    if "emulated" in facts:
        click.echo(
            f"emulated {facts['emulated']}: {1000 * facts['sample_step_s']:.2f} ms per sample, {100 * result['utilisation']:.1f} % busy"
        )
    if "deviation" in facts:
        click.echo(f"not MLPerf's model: {facts['deviation']}")
    for note in result["notes"]:
        click.echo(note)
    for reason in result["invalid"]:
        click.echo(f"INVALID: {reason}")
    if saved:
        click.echo(f"{runs}/{result['id']}/result.json")


def _print_run(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['steps']:,} steps, {result['samples']:,} samples in {result['train_s']:.1f} s: {result['samples_per_s']:,.1f} samples/s, "
        f"data wait {100 * result['wait_share']:.1f} %, first batch after {result['first_batch_s']:.2f} s, "
        f"{result['bytes'] / 1e6:,.1f} MB read, {result['throttles']:,} throttled"
    )
    if result["stage_s"]:
        click.echo(f"time to train {result['time_to_train_s']:.1f} s, of which staging took {result['stage_s']:.1f} s")
    if result["losses"]:
        click.echo(f"loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}")
    if result["mae"] is not None:
        click.echo(f"mae {result['mae']:.4f} on validation, a constant answer has {result['mae_constant']:.4f}")
    last = result["metrics"][-1] if result["metrics"] else {}
    if "top1" in last:
        click.echo(
            f"top-1 {100 * last['top1']:.1f} %, top-5 {100 * last['top5']:.1f} % of {last['validation_samples']:,.0f} "
            f"validation images; chance is {100 / result['workload']['classes']:.1f} %"
        )


def _print_checkpoints(found: dict[str, Any]) -> None:
    each = found["bytes"] / found["saves"]
    click.echo(
        f"{found['saves']:,} checkpoint{'s' if found['saves'] > 1 else ''} of {each / 1e6:,.1f} MB at {found['bytes_per_s'] / 1e6:,.1f} MB/s; training "
        f"stalled {1000 * found['stall_s'] / found['saves']:,.1f} ms per checkpoint "
        f"({100 * found['stall_share']:.1f} % of its time); the latest is step {found['last_step']:,}"
    )
    for damaged in found["damaged"]:
        click.echo(f"skipped at the resume: {damaged}")


def _print_data_path(found: dict[str, Any]) -> None:
    unit = found["unit"]
    for name in ("real", "synthetic"):
        side = found[name]
        click.echo(
            f"{name:<9} {side['median']:12,.1f} {unit} (median of {len(side['turns'])} turns), "
            f"{1000 * side['cpu_s_per_sample']:.2f} ms of CPU time per sample"
        )
    lost = found["synthetic"]["median"] - found["real"]["median"]
    low, high = found["cost_interval"]
    interval = "unknown" if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f} %"
    verdict = {
        "same": f"no difference of {100 * found['margin']:g} % or more",
        "different": "a difference is shown",
        "none shown": "no difference is shown (more --max-turns or a quieter machine narrow the interval)",
    }[found["verdict"]]
    click.echo(
        f"the data path costs {100 * found['cost']:.2f} % ({lost:,.1f} {unit}), 95 % interval {interval}: {verdict}"
    )
    click.echo(f"real / synthetic = {found['ratio']:.4f}; limited by {_name(found['limiting'])}: {found['reason']}")


def _name(time_class: str) -> str:
    return time_class.removesuffix("_s").replace("_", " ")


def _print_breakdown(found: dict[str, Any]) -> None:
    if not found:
        return
    step_s = found["step_s"]
    shares = [
        f"{text} {1000 * found['parts'][name]:.2f} ms ({100 * found['parts'][name] / step_s:.1f} %)"
        for name, text in _PARTS.items()
        if found["parts"][name] >= 0.001 * step_s
    ]
    click.echo(f"a step takes {1000 * step_s:.2f} ms: {', '.join(shares)}")
    if "slowest" in found:
        slowest = found["slowest"]
        click.echo(
            f"rank {slowest['rank']} is the slowest in {100 * slowest['share_of_steps']:.0f} % of the steps; the others wait for it"
        )

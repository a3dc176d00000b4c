# SPDX-License-Identifier: Apache-2.0
"""Output of `penstock train` for people: the run, where a step's time went, and what the data path costs."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.wrapping import echo_wrapped
from penstock.units import plural

__all__ = ["print_result"]

_MIN_WAIT_S = 0.05
_SHOWN_DIFFERENCE = 0.01
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
        echo_wrapped(
            f"emulated {facts['emulated']}: {1000 * facts['sample_step_s']:.2f} ms per sample, {100 * result['utilisation']:.1f} % busy"
        )
    if "deviation" in facts:
        echo_wrapped(f"not MLPerf's model: {facts['deviation']}")
    for note in result["notes"]:
        echo_wrapped(note)
    for reason in result["invalid"] if not _was_complete(result) else ():
        echo_wrapped(f"INVALID: {reason}")
    if saved:
        click.echo(f"{runs}/{result['id']}/result.json")


def _was_complete(result: dict[str, Any]) -> bool:
    """Whether a resumed run had no step left to take."""
    return bool(result["samples"] == 0 and 0 < result["steps"] == result["workload"]["resumed_at_step"])


def _print_run(result: dict[str, Any]) -> None:
    if _was_complete(result):
        echo_wrapped(f"already complete at step {result['steps']:,}: nothing was left to train")
    else:
        _print_rate(result)
    if result["workload"]["substituted"]:
        echo_wrapped(f"{result['workload']['substituted']:,} samples could not be read, and were replaced by others")
    if result["stage_s"]:
        echo_wrapped(
            f"time to train {result['time_to_train_s']:.1f} s, of which staging took {result['stage_s']:.1f} s"
        )
    if result["losses"]:
        echo_wrapped(f"loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}")
    if result["mae"] is not None:
        echo_wrapped(f"mae {result['mae']:.4f} on validation, a constant answer has {result['mae_constant']:.4f}")
    last = result["metrics"][-1] if result["metrics"] else {}
    if "top1" in last:
        echo_wrapped(
            f"top-1 {100 * last['top1']:.1f} %, top-5 {100 * last['top5']:.1f} % of {last['validation_samples']:,.0f} "
            f"validation images; chance is {100 / result['workload']['classes']:.1f} %"
        )


def _print_rate(result: dict[str, Any]) -> None:
    resumed = result["workload"]["resumed_at_step"]
    since = f" after step {resumed:,}" if resumed else ""
    unit, rate, saved = result["workload"]["unit"], result["samples_per_s"], result["checkpoints"]
    others = [f"{saved['samples_per_s']:,.1f} with checkpoints"] if saved else []
    steady, warm_up = result["steady_samples_per_s"], result["warm_up_steps"]
    if steady is not None and (warm_up > 1 or abs(steady / rate - 1) > _SHOWN_DIFFERENCE):
        after = f"{warm_up} steps of warm-up" if warm_up > 1 else "the first step"
        others.append(f"{steady:,.1f} after {after}")
    aside = f" ({', '.join(others)})" if others else ""
    echo_wrapped(
        f"{plural(result['steps'] - resumed, 'step')}{since}, {plural(result['samples'], 'sample')} in {result['train_s']:.1f} s: "
        f"{rate:,.1f} {unit}{aside}, data wait {100 * result['wait_share']:.1f} %, first batch after {result['first_batch_s']:.2f} s, "
        f"{result['bytes'] / 1e6:,.1f} MB read, {result['throttles']:,} throttled"
    )


def _print_checkpoints(found: dict[str, Any]) -> None:
    each = found["bytes"] / found["saves"]
    last = f", and the last write {found['end_wait_s']:.1f} s after it" if found["end_wait_s"] >= _MIN_WAIT_S else ""
    echo_wrapped(
        f"{found['saves']:,} checkpoint{'s' if found['saves'] > 1 else ''} of {each / 1e6:,.1f} MB at {found['bytes_per_s'] / 1e6:,.1f} MB/s; "
        f"stalls of {1000 * found['stall_s'] / found['saves']:,.1f} ms per checkpoint took "
        f"{100 * found['training_stall_share']:.1f} % of the training time{last}; the latest is step {found['last_step']:,}"
    )
    for changed in found["changed_settings"]:
        echo_wrapped(f"changed at the resume: {changed}")
    for damaged in found["damaged"]:
        echo_wrapped(f"skipped at the resume: {damaged}")


def _print_data_path(found: dict[str, Any]) -> None:
    unit = found["unit"]
    for name in ("real", "synthetic"):
        side = found[name]
        echo_wrapped(
            f"{name:<9} {_rate(side['median']):>12} {unit} (median of {len(side['turns'])} turns), "
            f"{1000 * side['cpu_s_per_sample']:.2f} ms of CPU time per sample"
        )
    (low, high), edges = found["cost_interval"], found["cost_per_s_interval"]
    interval = (
        "unknown"
        if low is None or high is None
        else f"{100 * low:.2f} to {100 * high:.2f} %, {_rate(edges[0])} to {_rate(edges[1])} {unit}"
    )
    verdict = {
        "same": f"no difference of {100 * found['margin']:g} % or more",
        "different": "a difference is shown",
        "none shown": "no difference is shown (more --max-turns or a quieter machine narrow the interval)",
    }[found["verdict"]]
    echo_wrapped(
        f"the data path costs {100 * found['cost']:.2f} % ({_rate(found['cost_per_s'])} {unit}), 95 % interval {interval}: {verdict}"
    )
    limit = "limit not known" if found["limiting"] == "unknown" else f"limited by {_name(found['limiting'])}"
    echo_wrapped(f"real / synthetic = {found['ratio']:.4f}; {limit}: {found['reason']}")


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if abs(per_s) >= 10 else f"{per_s:.2g}"


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
    after = ""
    if found["excluded_steps"]:
        after = " after the first" if found["excluded_steps"] == 1 else " after the warm-up"
    echo_wrapped(f"a step{after} takes {1000 * step_s:.2f} ms: {', '.join(shares)}")
    if "slowest" in found:
        slowest = found["slowest"]
        echo_wrapped(
            f"rank {slowest['rank']} is the slowest in {100 * slowest['share_of_steps']:.0f} % of the steps; the others wait for it"
        )

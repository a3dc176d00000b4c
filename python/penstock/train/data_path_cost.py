# SPDX-License-Identifier: Apache-2.0
"""Cost of the data path: the same training on real and on synthetic data, in alternating turns.

A turn is a few dozen steps on one kind of data. All turns train the same model, and all ranks switch the feed at the
same step. The real feed's pass ends with its turn, so that it cannot read ahead during a synthetic turn. The order of
turns, the interval and the stopping rule are the same as in `penstock bench ab`.

Each real turn starts the feed again. Rates exclude this start, but the steps after it use what the feed has read
meanwhile, so short turns would hide a slow data path. Therefore, turns are at least 50 times as long as the start.
"""

from __future__ import annotations

import math
from contextlib import suppress
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

from penstock.bench import ab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.protocols import Batch, Demand
    from penstock.train.driver import EpochTime
    from penstock.train.source import Feed

__all__ = ["MARGIN", "Turn", "compare_turns", "doubt", "limit_of", "unit_of"]

MARGIN = 0.02
"""Relative difference of the rates below which real and synthetic data count as equal: the aim is real >= 0.98 x
synthetic.
"""

_ALPHA = 0.05
_TURN_STEPS = 30
_STARTS = (
    1 / MARGIN
)  # length of a turn in starts, so that data read during the start changes a rate by less than the margin
_MAX_TURN_S = 15.0
_WARM_UP_TURNS = 3
_GROWTH = 10
_MAX_START_SHARE = 0.2
_SIDES = (("synthetic",), ("real",))
_WAITS = (
    "first_byte_s",
    "transfer_s",
    "throttle_s",
    "inflate_s",
    "decode_s",
    "map_s",
    "host_to_device_s",
    "overhead_s",
)


class Turn:
    """The next `steps` batches of a feed, over as many epochs as needed. Behaves as a feed of one short epoch."""

    def __init__(self, feed: Feed, steps: int, number: int) -> None:
        self._feed, self._steps, self._number = feed, steps, number

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        # Each turn uses the sample order of another epoch, so that a large dataset is not read from caches.
        if (set_epoch := getattr(self._feed, "set_epoch", None)) is not None:
            set_epoch(self._number)
        left = self._steps
        while left:
            batches = iter(self._feed)
            try:
                for batch in batches:
                    left -= 1
                    yield batch
                    if not left:
                        break
            finally:
                _end(batches)

    def state_dict(self) -> dict[str, Any]:
        return self._feed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self._feed.load_state_dict(state)

    def report(self) -> Mapping[str, Any]:
        return self._feed.report()


def _end(batches: Any) -> None:
    """End a pass with its threads and requests. Call this after the pass's measurements are taken."""
    if (end := getattr(batches, "end", None)) is not None:
        end("the turn of this feed is over")
    elif (close := getattr(batches, "close", None)) is not None:
        with suppress(RuntimeError):
            close()


def unit_of(demand: Demand) -> str:
    """`images/s` for a workload of images, else `samples/s`."""
    return "images/s" if any(field.dtype == "image" for field in demand.fields.values()) else "samples/s"


def compare_turns(
    run: Callable[[Turn, bool], EpochTime],
    gather: Callable[[Any], list[Any]],
    feed: Feed,
    synthetic: Feed,
    *,
    turn_steps: int | None,
    warm_up_steps: int,
    global_batch: int,
    max_turns: int,
    seed: int,
    unit: str,
) -> dict[str, Any]:
    """Run alternating turns until the difference is known; return the comparison as plain values for a result.

    Args:
        run: Trains for one turn; the second argument is true for synthetic data. Returns the turn's times.
        gather: Exchanges a value with the other ranks. All ranks take the same decisions, because a turn's rate is
            computed from the slowest rank.
        turn_steps: Steps of a turn, including the warm-up. None: 30 steps after the warm-up, or as many as make a real
            turn 50 times as long as the start of its feed, but at most 15 s. The first turns of each side show how many.

    Returns:
        `real` and `synthetic` (rates of all turns, their medians), `ratio` (real / synthetic) with `interval` and
        `bootstrap`, `cost` (1 - ratio) with `cost_interval`, the same in samples/s as `cost_per_s` and
        `cost_per_s_interval`, `start_share` (median time of a real turn's start, divided by its measured time),
        `verdict` and `stopped`. Bounds are None if unknown. Each side also has `cpu_s_per_sample`, the CPU time of all
        threads, which other programs on the machine hardly change.
    """
    number = 0
    steps = turn_steps or warm_up_steps + _TURN_STEPS
    # Each warm-up turn decides on the length of the next one. The lengths grow slowly, because a short turn can suggest
    # that steps are shorter than they are.
    warm_up_turns = 1 if turn_steps else _WARM_UP_TURNS
    starts: list[float] = []
    used: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}

    def turn(argv: Sequence[str], _name: str) -> float:
        nonlocal number, steps
        number += 1
        is_measured = number > len(_SIDES) * warm_up_turns
        is_synthetic = argv[0] == "synthetic"
        began_cpu_s = process_time()
        took = run(Turn(synthetic if is_synthetic else feed, steps, number), is_synthetic)
        cpu_s = process_time() - began_cpu_s
        everyone = gather(
            (took.wall_s - took.warm_up_s, took.samples - took.warm_up_samples, cpu_s, took.samples, took.warm_up_s)
        )
        measured_s = max(1e-9, *(one[0] for one in everyone))
        samples = sum(one[1] for one in everyone)
        if is_measured:
            used[is_synthetic][0] += sum(one[2] for one in everyone)
            used[is_synthetic][1] += sum(one[3] for one in everyone)
        if not is_synthetic:
            step_s = measured_s / max(1, steps - warm_up_steps)
            start_s = max(0.0, *(one[4] for one in everyone)) - warm_up_steps * step_s
            if is_measured:
                starts.append(max(0.0, start_s) / measured_s)
            elif turn_steps is None:
                enough = math.ceil(min(_STARTS * start_s, _MAX_TURN_S) / step_s)
                steps = warm_up_steps + max(_TURN_STEPS, min(enough, _GROWTH * steps))
        return float(samples / measured_s)

    found = ab.compare(
        _SIDES[0],
        _SIDES[1],
        turn,
        metric=unit,
        alpha=_ALPHA,
        margin=MARGIN,
        max_runs=max_turns,
        warm_up=warm_up_turns,
        seed=seed,
    )
    low, high = found.interval
    cost = (1 - found.ratio, None if high is None else 1 - high, None if low is None else 1 - low)
    cost_per_s = [None if one is None else one * found.a.median for one in cost]
    return {
        "unit": unit,
        "real": {"median": found.b.median, "turns": list(found.b.values), **_cpu(used[False])},
        "synthetic": {"median": found.a.median, "turns": list(found.a.values), **_cpu(used[True])},
        "ratio": found.ratio,
        "interval": [low, high],
        "bootstrap": list(found.bootstrap),
        "cost": cost[0],
        "cost_interval": list(cost[1:]),
        "cost_per_s": cost_per_s[0],
        "cost_per_s_interval": cost_per_s[1:],
        "start_share": median(starts),
        "verdict": found.verdict,
        "stopped": found.stopped,
        "margin": found.margin,
        "turn_steps": steps,
        "global_batch": global_batch,
    }


def _cpu(used: Sequence[float]) -> dict[str, float]:
    seconds, samples = used
    return {"cpu_s_per_sample": seconds / samples if samples else 0.0}


def doubt(data_path: Mapping[str, Any]) -> str | None:
    """Return a reason if the comparison is implausible, otherwise None. Real data cannot be faster than data in memory,
    and a rate of data that was read before the measurement is not the data path's.
    """
    low, start = data_path["interval"][0], data_path["start_share"]
    if start > _MAX_START_SHARE:
        return (
            f"starting the feed took {100 * start:.0f} % of the time of a turn on real data, and the rates exclude it: "
            "turns were too short, so omit --turn-steps or increase it"
        )
    if low is None or low <= 1 + data_path["margin"]:
        return None
    return (
        f"real data was {data_path['ratio']:.2f} times as fast as data in memory: other programs disturbed the machine"
    )


def limit_of(data_path: Mapping[str, Any], passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the stage of the data path that costs most, from the feed's reports of the real turns.

    Returns:
        `limiting` (a class of `loader.report()`; `compute_s` if the data path costs nothing; `unknown` if no cost is
        shown) and `reason`.
    """
    if data_path["verdict"] == "same" or data_path["ratio"] >= 1:
        return {"limiting": "compute_s", "reason": "the data path keeps up with the model"}
    seconds = {name: sum(float(one.get(name, 0.0)) for one in passes) for name in _WAITS}
    total_s = sum(seconds.values())
    if total_s <= 0:
        return {"limiting": "unknown", "reason": "the reader reports no times"}
    worst = max(seconds, key=lambda name: seconds[name])
    name = worst.removesuffix("_s").replace("_", " ")
    is_shown = data_path["verdict"] == "different"
    reason = f"{100 * seconds[worst] / total_s:.0f} % of the waiting for data went to {name}"
    return {
        "limiting": worst if is_shown else "unknown",
        "reason": reason if is_shown else f"no cost is shown; {reason}",
        "seconds": {name: value for name, value in seconds.items() if value > 0},
    }

# SPDX-License-Identifier: Apache-2.0
"""Checks the cards of `penstock probe`: probes emulated tiers with known limits, emulates the cards, and probes those.

Prints one line per limit: the tier's value, the card's, and the value that a probe of the emulated card finds. The
largest errors are the result. Tiers run at a scale that one machine with two cores can serve without being the limit.

    python benches/probe.py [SECONDS] [TIER@SCALE ...]
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import env, tiers
from penstock.bench.results import provenance
from penstock.emulator import Emulator
from penstock.probe import card as cards
from penstock.probe.objects import ObjectProbe
from penstock.probe.run import Settings
from penstock.probe.spending import Meter, prices_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.probe.card import Card
    from penstock.tiers import Tier

SCALES = {"azure-hot": 0.01, "s3-standard": 0.05, "gcs-standard": 0.03, "azure-premium": 0.01}


def probe(folder: Path, tier: str, scale: float, time_s: float, out: Path) -> tuple[Card, str]:
    """Probe an emulated tier; return the card, and the name under which it can be emulated."""
    with Emulator(folder, tier=tier, scale=scale) as server, env.override(server.env):
        prices = prices_of(server.url, is_custom_endpoint=True, same_region=False)
        meter = Meter(prices, budget_usd=1.0, max_bytes=10**11, time_s=time_s)
        run = ObjectProbe(server.url, Settings(time_s=time_s, cpu=False), meter, is_loopback=True)
        run.run()
        card = run.card()
        file = cards.write(out, card, run.rows, spec={"bench": "probe"}, provenance=provenance())
        return card, f"{file}#{card.name}"


def figures(card: Card) -> dict[str, float]:
    """Figures of a card, by name."""
    found = {f"{one.what} {one.scope}": one.value for one in card.limits if one.is_limit}
    found |= {f"read latency {p}": getattr(card.latency["read"], f"{p}_ms") for p in ("p50", "p99")}
    found |= {f"burst {one.what}": one.units for one in card.bursts}
    return found


def known(tier: Tier, scale: float) -> dict[str, float]:
    """The same figures of a tier: what a reader can run into."""
    found = {}
    for limit in tier.limits:
        if limit.what.startswith("write"):
            continue
        what = "read-requests" if limit.what == "requests" else limit.what
        found[f"{what} {limit.scope}"] = limit.value * scale
        if what == "read-requests" and tier.burst:
            found["burst read-requests"] = limit.value * scale * tier.burst.value
    latency = next(one for one in tier.latency if one.what == "read")
    return found | {"read latency p50": latency.p50_ms, "read latency p99": latency.p99_ms}


def dataset(folder: Path) -> None:
    """Sixteen objects of 8 MiB in four prefixes."""
    for at in range(16):
        place = folder / f"part{at % 4}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"o{at:02d}.bin").write_bytes(os.urandom(8 << 20))


def lines(name: str, scale: float, time_s: float, scratch: Path) -> Iterator[str]:
    folder = scratch / "bucket"
    if not folder.exists():
        dataset(folder)
    first, made = probe(folder, name, scale, time_s, scratch / f"{name}-1")
    second, _ = probe(folder, made, 1.0, time_s, scratch / f"{name}-2")
    want, one, two = known(tiers.find(name), scale), figures(first), figures(second)
    for what in dict.fromkeys([*want, *one]):
        cells = [want.get(what), one.get(what), two.get(what)]
        errors = [f"{b / a - 1:+.1%}" if a is not None and b is not None else "–" for a, b in itertools.pairwise(cells)]
        shown = [f"{cell:,.1f}" if cell is not None else "–" for cell in cells]
        yield f"| {name} x {scale:g} | {what} | {' | '.join(shown)} | {' | '.join(errors)} |"
    yield f"load {os.getloadavg()[0]:.1f}; missing {first.missing or 'nothing'}"


def main() -> None:
    time_s = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    asked = [text.partition("@")[::2] for text in sys.argv[2:]] or [(name, "") for name in SCALES]
    print("| tier | figure | tier's | card's | card of the emulated card | error | error again |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-probe-") as scratch:
        for name, scale in asked:
            for line in lines(name, float(scale or SCALES[name]), time_s, Path(scratch)):
                print(line, flush=True)


if __name__ == "__main__":
    main()

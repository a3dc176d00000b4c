# SPDX-License-Identifier: Apache-2.0
"""Part `paths`: the demo's four paths, and the Premium mount, with real training and emulated accelerators.

A rehearsal's volumes are F times the published ones, as are the tiers' rates, so one file and one step take as long as in
the article. The epoch is computed from the steady rate: 262,144 samples.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from penstock.demo.paths import PATHS
from penstock.demo.run import DATA, REPORT, DemoSpec, served, tier_of, time_path
from penstock.demo.run import run as run_demo
from penstock.demo.sizes import SIZES
from penstock.plan.reference_job import JOB
from penstock.study.result import Claim, PartResult, Table, Text, Value
from penstock.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from penstock.report.comparison import Comparison
    from penstock.study.run import Context

__all__ = ["run"]

# Paths of the demo, and the figures that they rehearse.
_FIGURES = {"as-published": "epoch-hot", "streamed-hot": "epoch-stream", "staged": "epoch-pool"}
_PREMIUM_MOUNT = msgspec.structs.replace(
    PATHS[0],
    name="premium-mount",
    label="raw files, Premium mount",
    tier="azure-premium@2021",
    published="premium-mount",
)
_PREMIUM = "epoch-premium"


def run(context: Context) -> PartResult:
    """Run the demo, then its mount path on the Premium tier with the same data."""
    spec = DemoSpec(out=context.scratch / "demo", size=SIZES[context.size["demo"]], keep=True)
    facts = run_demo(spec, context.progress)
    context.progress("raw files, Premium mount")
    work = spec.out / DATA
    with served(_PREMIUM_MOUNT, tier_of(_PREMIUM_MOUNT), work / "bucket", work, spec.size.scale) as server:
        premium = time_path(spec, _PREMIUM_MOUNT, f"{server.url}{_PREMIUM_MOUNT.stored}/", 0.0)
    shutil.copyfile(spec.out / REPORT, context.out / "demo.html")
    rates = {path.name: path.samples_per_s for path in facts.paths}
    rates["premium-mount"] = premium.steady_samples_per_s or premium.samples_per_s
    measured = {
        figure: Value(JOB.samples / rates[name] / 60, f"{rates[name]:.0f} samples/s", scale=facts.scale)
        for name, figure in {**_FIGURES, "premium-mount": _PREMIUM}.items()
    }
    return PartResult(
        measured=measured,
        claims=tuple(_claims(facts, rates)),
        blocks=(_about(facts), _table(facts)),
        not_measured=(f"the speed of Penstock's own code: {facts.invalid}",) if facts.invalid else (),
        data={"rates": rates, "digest": facts.learning.digest, "seconds": facts.seconds},
    )


def _claims(facts: Comparison, rates: dict[str, float]) -> list[Claim]:
    learnt = facts.learning
    claims = [
        Claim(
            "training has the same losses on all paths, bit for bit",
            f"digest {learnt.digest[:12]} on {len(facts.paths)} paths" if learnt.identical else "the losses differ",
            holds=learnt.identical,
            must=True,
        ),
        Claim(
            "streamed gzip is as fast as data staged to the disk, within 10 %",
            f"{rates['streamed-hot']:.0f} and {rates['staged']:.0f} samples/s",
            holds=rates["streamed-hot"] >= 0.9 * rates["staged"],
        ),
    ]
    for path in facts.paths:
        here = f"{path.samples_per_s:.0f} samples/s, modelled {path.model_samples_per_s:.0f}"
        claims.append(
            Claim(f"{path.label}: within 20 % of the model's rate", f"{here}{'; ' * bool(path.missed)}{path.missed}", not path.missed)
        )  # fmt: skip
    return claims


def _about(facts: Comparison) -> Text:
    return Text(
        title="Rehearsed paths",
        text=(
            f"{facts.rehearsal.samples} volumes of {facts.rehearsal.voxels} voxels a side, F = {facts.scale:g};"
            f" 32 emulated accelerators with the article's step of {format_seconds(facts.rehearsal.step_s)}. The report of"
            " the demo is in `demo.html`."
        ),
    )


def _table(facts: Comparison) -> Table:
    rows = tuple(
        (
            path.label, f"{path.samples_per_s:.0f}", f"{path.model_samples_per_s:.0f}", f"{path.wait_share:.0%}",
            format_bytes(path.bytes), format_seconds(path.stage_s) if path.stage_s else "–", path.limited_by,
        )
        for path in facts.paths
    )  # fmt: skip
    head = ("path", "samples/s", "modelled before", "waiting", "bytes moved", "staging", "limited by")
    return Table("Rates of the rehearsal", head, rows)

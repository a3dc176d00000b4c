# SPDX-License-Identifier: Apache-2.0
"""Writes a comparison as one HTML file that opens offline, sends no requests, and draws its charts in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.report import number_format
from penstock.report.charts import charts, per_point
from penstock.report.document import document, escape, figure, refuse_without_charts, table, write_whole
from penstock.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.report.comparison import Comparison, PathFacts

__all__ = ["page", "write_page"]


def _card(index: int, path: PathFacts) -> str:
    predicted = path.predicted
    facts = [
        ("samples/s here", number_format.rate(path.samples_per_s)),
        ("data wait", number_format.share(path.wait_share)),
        ("first batch", format_seconds(path.first_batch_s)),
        ("staging", format_seconds(path.stage_s) if path.stage_s else "none"),
    ]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return (
        f'<li class="card" style="--c:var(--path{index})"><h3>{escape(path.label)}</h3><p class="how">{escape(path.how)}</p>'
        f'<div class="big">{escape(number_format.hours(predicted.total_h))} <small>predicted job</small></div><div class="money">{escape(number_format.usd(predicted.usd))}</div>'
        f'<dl>{rows}</dl><p class="limit"><b>limited by</b>{escape(path.limited_by)}</p></li>'
    )


def _measured(facts: Comparison) -> str:
    head = [
        ("", "path"),
        ("n", "samples/s"),
        ("n", "predicted"),
        ("n", "data wait"),
        ("n", "first batch"),
        ("n", "staging"),
        ("n", "bytes moved"),
        ("n", "requests"),
        ("n", "throttles"),
    ]
    rows = [
        [
            ("head", f'<i style="--c:var(--path{i})"></i>{escape(p.label)}'),
            ("n", number_format.rate(p.samples_per_s)),
            ("n", number_format.rate(p.model_samples_per_s) if p.model_samples_per_s else "–"),
            ("n", number_format.share(p.wait_share)),
            ("n", format_seconds(p.first_batch_s)),
            ("n", format_seconds(p.stage_s) if p.stage_s else "–"),
            ("n", format_bytes(p.bytes)),
            ("n", number_format.count(p.requests)),
            ("n", number_format.count(p.throttles)),
        ]
        for i, p in enumerate(facts.paths)
    ]
    return table(head, rows)


def _predicted(facts: Comparison) -> str:
    head = [
        ("", "path"),
        ("n", "epoch"),
        ("n", "staging"),
        ("n", "run"),
        ("n", "cost"),
        ("", "limited by"),
        ("", "published beside it"),
    ]
    rows = []
    for i, p in enumerate(facts.paths):
        predicted = p.predicted
        beside = (
            f"{p.published.path}: epoch {p.published.epoch_min} min, {p.published.run_h} h, {p.published.usd}"
            if p.published
            else "not tried in the article"
        )
        rows.append(
            [
                ("head", f'<i style="--c:var(--path{i})"></i>{escape(p.label)}'),
                ("n", f"{predicted.epoch_min:.1f} min"),
                ("n", format_seconds(predicted.stage_h * 3600) if predicted.stage_h else "–"),
                ("n", number_format.hours(predicted.run_h)),
                ("n", number_format.usd(predicted.usd)),
                ("w", escape(predicted.limited_by)),
                ("source", escape(beside)),
            ]
        )
    return table(head, rows)


def _tiers(facts: Comparison) -> str:
    head = [
        ("", "tier"),
        ("", "limit"),
        ("", "scope"),
        ("n", "stated"),
        ("n", "rehearsed"),
        ("", "source"),
        ("n", "as of"),
    ]
    return table(
        head,
        [
            [
                ("head", escape(t.tier)),
                ("", escape(t.limit)),
                ("", escape(t.scope)),
                ("n", escape(t.stated)),
                ("n", escape(t.rehearsed)),
                ("source", escape(t.source)),
                ("n", escape(t.as_of)),
            ]
            for t in facts.tiers
        ],
    )


def _prices(facts: Comparison) -> str:
    head = [("", "item"), ("n", "price"), ("", "region"), ("", "source"), ("n", "as of")]
    return table(
        head,
        [
            [
                ("head", escape(p.item)),
                ("n", escape(p.price)),
                ("", escape(p.region)),
                ("source", escape(p.source)),
                ("n", escape(p.as_of)),
            ]
            for p in facts.prices
        ],
    )


def _points(facts: Comparison) -> str:
    each = per_point(len(facts.paths[0].losses))
    return "Loss of each training step." if each == 1 else f"Each point is the mean loss of {each} training steps."


def _learning(facts: Comparison) -> str:
    learnt = facts.learning
    ratio = learnt.mae / learnt.mae_constant if learnt.mae_constant else 1.0
    one = (
        f'<span class="verdict"><b>✓</b> {len(facts.paths)} curves, one digest <code>{escape(learnt.digest[:16])}</code></span>'
        if learnt.identical
        else '<span class="verdict bad"><b>✗</b> the curves differ</span>'
    )
    good = ratio <= 0.9
    mae = f'<span class="verdict{"" if good else " bad"}"><b>{"✓" if good else "✗"}</b> held-out MAE {learnt.mae:.3f}, constant answer {learnt.mae_constant:.3f}</span>'
    text = (
        "The lines coincide, so each is drawn thinner than the one below: order and content of the samples do not "
        "depend on the path. "
        if learnt.identical
        else "The paths have different losses: something between store and model depends on the path. "
    )
    small = f"{learnt.samples:,} samples of {learnt.voxels}³ × 4, {learnt.epochs} epochs of batch {learnt.batch}, {learnt.held_out:,} held out; real gradient steps on this machine's CPU."
    return f'<h2>One loss curve on every path</h2><p>{one}{mae}</p><p class="note">{text}{escape(small)}</p>' + figure(
        "losses",
        f"{_points(facts)} Point at it to read all paths to nine decimals; the digest is over the exact losses of all steps.",
    )


def page(facts: Comparison) -> str:
    """Return the complete HTML document.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    specs = charts(facts)
    r = facts.rehearsal
    misses = facts.misses()
    passes = "each read once" if r.epochs == 1 else f"{r.epochs} epochs"
    parts = [
        f'<p class="kicker"><b>Penstock</b><span>demo</span><span>{escape(facts.created)}</span><span>scale F = {facts.scale:g}</span></p>',
        f"<h1>{escape(facts.headline[0])} <span>{escape(' '.join(facts.headline[1:]))}</span></h1>",
        f'<p class="invalid">INVALID as a measurement: {escape(facts.invalid)}.</p>' if facts.invalid else "",
        f'<p class="missed">{escape(number_format.MISSED)} {escape(" ".join(misses))}</p>' if misses else "",
        f'<p class="lead">{escape(facts.lead)}</p>',
        f'<ul class="cards">{"".join(_card(i, p) for i, p in enumerate(facts.paths))}</ul>',
        (
            "<h2>What the published job would take</h2>"
            '<p class="note">48 epochs of 262,144 samples on 4 nodes of 8 V100. Bars are predicted from each tier’s stated limits by the step model; diamonds are what the article reports.</p>'
        ),
        figure(
            "hours",
            "Predicted hours and cost (bars), published hours (diamonds). The article never tried to stream the gzip’d objects.",
        ),
        _predicted(facts),
        (
            "<h2>Rehearsed here</h2>"
            f'<p class="note">{r.samples:,} volumes of {r.voxels}³ × 4 ({format_bytes(r.sample_bytes)} raw, {format_bytes(r.stored_bytes)} gzip’d), {passes}, batches of {r.batch}. '
            f"A step of the 32 accelerators is emulated by {format_seconds(r.step_s)} of waiting; storage, network, inflating and delivery are real.</p>"
        ),
        figure(
            "rates",
            "Samples/s through the whole path. The vertical mark is the model’s prediction before the run; the "
            "dashed line is the maximum of the emulated accelerators.",
        ),
        figure("steps", "Mean seconds of one step, by cause."),
        _measured(facts),
        _learning(facts) if "losses" in specs else "",
        (
            "<h2>When does a pool pay off?</h2>"
            '<p class="note">The same model on more nodes: one storage account serves them all. Where a line bends, '
            "the account is at its limit; staged nodes continue to scale.</p>"
            + figure(
                "scaling",
                "Modelled, not measured. V100 at the rate the article measured, one storage account, no allreduce cost, one reader per GPU.",
            )
        )
        if "scaling" in specs
        else "",
        f'<h2>Limits and where they come from</h2><p class="note">A tier’s rates were multiplied by F = {facts.scale:g}; latencies never are.</p>{_tiers(facts)}',
        f'<h2>Prices</h2><p class="note">{escape(facts.prices_line[:1].upper() + facts.prices_line[1:])}.</p>{_prices(facts)}',
        f'<h2>Read this before you quote it</h2><ul class="notes">{"".join(f"<li>{escape(n)}</li>" for n in facts.notes)}</ul>',
        f'<h2>The machine</h2><dl class="machine">{"".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.machine.items())}</dl>',
        (
            f"<footer>Made by <code>penstock demo</code> in {format_seconds(facts.seconds)}. This file is self-contained "
            "and loads nothing.</footer>"
        ),
    ]
    return document(f"Penstock: {facts.headline[0]}", parts, specs)


def write_page(facts: Comparison, file: Path) -> None:
    """Write the HTML document atomically."""
    write_whole(page(facts), file)

# SPDX-License-Identifier: Apache-2.0
"""The comparison as one HTML file: opens offline, asks nobody for anything, and draws its charts in the reader's browser."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import TYPE_CHECKING

from penstock.errors import Unsupported
from penstock.report import words
from penstock.report.charts import charts, per_point
from penstock.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.report.facts import Comparison, PathFacts

__all__ = ["page", "write_page"]

# The favicon is a drop, inlined, so that no browser asks the disk for one.
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M8 1C11 6 13 8 13 10.5a5 5 0 0 1-10 0C3 8 5 6 8 1z' fill='%230067ab'/%3E%3C/svg%3E"
# The three libraries as globals, which is what the bundler does when told nothing.
_EMBED = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _e(text: object) -> str:
    return html.escape(str(text))


def _script_json(value: object) -> str:
    # `</script>` or `<!--` inside a string would end the element.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _table(head: Iterable[tuple[str, str]], rows: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Head and cells are (class, html); a cell of class `head` is the row's name."""
    top = "".join(f'<th scope="col" class="{kind}">{_e(text)}</th>' for kind, text in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if kind == "head" else f'<td class="{kind}">{cell}</td>'
            for kind, cell in row
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _card(index: int, path: PathFacts) -> str:
    said = path.predicted
    facts = [
        ("samples/s here", words.rate(path.samples_per_s)),
        ("data wait", words.share(path.wait_share)),
        ("first batch", format_seconds(path.first_batch_s)),
        ("staging", format_seconds(path.stage_s) if path.stage_s else "none"),
    ]
    rows = "".join(f"<dt>{_e(name)}</dt><dd>{_e(value)}</dd>" for name, value in facts)
    return (
        f'<li class="card" style="--c:var(--path{index})"><h3>{_e(path.label)}</h3><p class="how">{_e(path.how)}</p>'
        f'<div class="big">{_e(words.hours(said.total_h))} <small>predicted job</small></div><div class="money">{_e(words.usd(said.usd))}</div>'
        f'<dl>{rows}</dl><p class="limit"><b>limited by</b>{_e(path.limited_by)}</p></li>'
    )


def _measured(facts: Comparison) -> str:
    head = [
        ("", "path"),
        ("n", "samples/s"),
        ("n", "model said"),
        ("n", "data wait"),
        ("n", "first batch"),
        ("n", "staging"),
        ("n", "bytes moved"),
        ("n", "requests"),
        ("n", "throttles"),
    ]
    rows = [
        [
            ("head", f'<i style="--c:var(--path{i})"></i>{_e(p.label)}'),
            ("n", words.rate(p.samples_per_s)),
            ("n", words.rate(p.model_samples_per_s) if p.model_samples_per_s else "–"),
            ("n", words.share(p.wait_share)),
            ("n", format_seconds(p.first_batch_s)),
            ("n", format_seconds(p.stage_s) if p.stage_s else "–"),
            ("n", format_bytes(p.bytes)),
            ("n", words.count(p.requests)),
            ("n", words.count(p.throttles)),
        ]
        for i, p in enumerate(facts.paths)
    ]
    return _table(head, rows)


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
        said = p.predicted
        beside = (
            f"{p.published.path}: epoch {p.published.epoch_min} min, {p.published.run_h} h, {p.published.usd}"
            if p.published
            else "not tried in the article"
        )
        rows.append(
            [
                ("head", f'<i style="--c:var(--path{i})"></i>{_e(p.label)}'),
                ("n", f"{said.epoch_min:.1f} min"),
                ("n", format_seconds(said.stage_h * 3600) if said.stage_h else "–"),
                ("n", words.hours(said.run_h)),
                ("n", words.usd(said.usd)),
                ("w", _e(said.limited_by)),
                ("source", _e(beside)),
            ]
        )
    return _table(head, rows)


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
    return _table(
        head,
        [
            [
                ("head", _e(t.tier)),
                ("", _e(t.limit)),
                ("", _e(t.scope)),
                ("n", _e(t.stated)),
                ("n", _e(t.rehearsed)),
                ("source", _e(t.source)),
                ("n", _e(t.as_of)),
            ]
            for t in facts.tiers
        ],
    )


def _prices(facts: Comparison) -> str:
    head = [("", "item"), ("n", "price"), ("", "region"), ("", "source"), ("n", "as of")]
    return _table(
        head,
        [
            [("head", _e(p.item)), ("n", _e(p.price)), ("", _e(p.region)), ("source", _e(p.source)), ("n", _e(p.as_of))]
            for p in facts.prices
        ],
    )


def _figure(name: str, caption: str) -> str:
    return f'<figure><div class="chart" id="chart-{name}"><noscript>This chart is drawn by the script in this file.</noscript></div><figcaption>{caption}</figcaption></figure>'


def _points(facts: Comparison) -> str:
    each = per_point(len(facts.paths[0].losses))
    return "Loss of each training step." if each == 1 else f"Each point is the mean loss of {each} training steps."


def _learning(facts: Comparison) -> str:
    learnt = facts.learning
    ratio = learnt.mae / learnt.mae_constant if learnt.mae_constant else 1.0
    one = (
        f'<span class="verdict"><b>✓</b> {len(facts.paths)} curves, one digest <code>{_e(learnt.digest[:16])}</code></span>'
        if learnt.identical
        else '<span class="verdict bad"><b>✗</b> the curves differ</span>'
    )
    good = ratio <= 0.9
    mae = f'<span class="verdict{"" if good else " bad"}"><b>{"✓" if good else "✗"}</b> held-out MAE {learnt.mae:.3f}, constant answer {learnt.mae_constant:.3f}</span>'
    text = (
        "The lines lie on each other, so each is drawn thinner than the one beneath: order and content of the samples do not depend on the path. "
        if learnt.identical
        else "The paths did not give the same losses: something between store and model depends on the path. "
    )
    small = f"{learnt.samples:,} samples of {learnt.voxels}³ × 4, {learnt.epochs} epochs of batch {learnt.batch}, {learnt.held_out:,} held out; real gradient steps on this machine's CPU."
    return f'<h2>One loss curve on every path</h2><p>{one}{mae}</p><p class="note">{text}{_e(small)}</p>' + _figure(
        "losses",
        f"{_points(facts)} Point at it to read all paths to nine decimals; the digest is over the exact losses of all steps.",
    )


def page(facts: Comparison) -> str:
    """The whole document.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise Unsupported("the HTML report needs altair and vl-convert", hint="install penstock[report]") from error
    specs = charts(facts)
    r = facts.rehearsal
    passes = "each read once" if r.epochs == 1 else f"{r.epochs} epochs"
    parts = [
        f'<p class="kicker"><b>Penstock</b><span>first water</span><span>{_e(facts.created)}</span><span>scale F = {facts.scale:g}</span></p>',
        f"<h1>{_e(facts.headline[0])} <span>{_e(' '.join(facts.headline[1:]))}</span></h1>",
        f'<p class="invalid">INVALID as a measurement: {_e(facts.invalid)}.</p>' if facts.invalid else "",
        f'<p class="lead">{_e(facts.lead)}</p>',
        f'<ul class="cards">{"".join(_card(i, p) for i, p in enumerate(facts.paths))}</ul>',
        (
            "<h2>What the published job would take</h2>"
            '<p class="note">48 epochs of 262,144 samples on 4 nodes of 8 V100. Bars are predicted from each tier’s stated limits by the step model; diamonds are what the article reports.</p>'
        ),
        _figure(
            "hours",
            "Predicted hours and cost (bars), published hours (diamonds). The article never tried to stream the gzip’d objects.",
        ),
        _predicted(facts),
        (
            "<h2>Rehearsed here</h2>"
            f'<p class="note">{r.samples:,} volumes of {r.voxels}³ × 4 ({format_bytes(r.sample_bytes)} raw, {format_bytes(r.stored_bytes)} gzip’d), {passes}, batches of {r.batch}. '
            f"A step of the 32 accelerators is emulated by {format_seconds(r.step_s)} of waiting; storage, network, inflating and delivery are real.</p>"
        ),
        _figure(
            "rates",
            "Samples/s through the whole path. The upright mark is what the model said before the run; the dashed line is what the emulated accelerators can take.",
        ),
        _figure("steps", "Mean seconds of one step, by what they went to."),
        _measured(facts),
        _learning(facts) if "losses" in specs else "",
        (
            "<h2>When does a pool begin to pay?</h2>"
            '<p class="note">The same model on more nodes: one storage account serves them all. Where a line bends, the account is spent; staged nodes go on.</p>'
            + _figure(
                "scaling",
                "Modelled, not measured. V100 at the rate the article measured, one storage account, no allreduce cost, one reader per GPU.",
            )
        )
        if "scaling" in specs
        else "",
        f'<h2>Limits and where they come from</h2><p class="note">A tier’s rates were multiplied by F = {facts.scale:g}; latencies never are.</p>{_tiers(facts)}',
        f'<h2>Prices</h2><p class="note">{_e(facts.prices_line[:1].upper() + facts.prices_line[1:])}.</p>{_prices(facts)}',
        f'<h2>Read this before you quote it</h2><ul class="notes">{"".join(f"<li>{_e(n)}</li>" for n in facts.notes)}</ul>',
        f'<h2>The machine</h2><dl class="machine">{"".join(f"<div><dt>{_e(k)}</dt><dd>{_e(v)}</dd></div>" for k, v in facts.machine.items())}</dl>',
        f"<footer>Made by <code>penstock demo</code> in {format_seconds(facts.seconds)}. This file is whole: it loads nothing from anywhere.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<title>Penstock: {_e(facts.headline[0])}</title><link rel="icon" href="{_ICON}">'
        f"<style>{_asset('page.css')}</style></head><body><main>{''.join(parts)}</main>"
        f'<script type="application/json" id="specs">{_script_json(specs)}</script>'
        f"<script>{vl_convert.javascript_bundle(_EMBED)}</script><script>{_asset('page.js')}</script></body></html>\n"
    )


def write_page(facts: Comparison, file: Path) -> None:
    """Write the document, whole or not at all."""
    text = page(facts)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
